//! Tests of task management: which tasks a function ends, which it leaves alone, and that no late data of an
//! ended task reaches a medium.

use base::buffer::Bytes;
use base::time::Duration;
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::target::engine::EngineLimits;
use netem::frame::{FramePlan, lossy};
use security::Level;
use transport::command::TaskAttribute;
use transport::initiator::{InitiatorTransport as _, Request, TaskId, TaskResult, TmfId, TmfParameters};
use transport::target::{TargetTransport as _, TaskRef};
use transport::task_management::{TmfFunction, TmfResult};

use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);

fn linger(world: &mut World, at: usize, lun: u64) -> TaskId {
    world.submit(at, Request::new(lun, cdb(LINGER, 0, 0)))
}

fn manage(world: &mut World, at: usize, function: TmfFunction, lun: u64, task: Option<TaskId>) -> TmfId {
    let now = world.now;
    world.initiators[at].session.submit_tmf(now, TmfParameters { function, lun, task }).unwrap()
}

fn answer(world: &mut World, at: usize, id: TmfId) -> Option<TmfResult> {
    let done = world.run(60 * SECOND, |world| world.initiators[at].managed.contains_key(&id));
    assert!(done, "no answer");
    world.initiators[at].managed.remove(&id).unwrap()
}

#[test]
fn one_task_is_aborted_and_its_neighbours_go_on() {
    for seed in seeds(8) {
        println!("HYPER_SEED={seed}");
        let password = (seed % 2 == 0).then_some("sesame");
        let mut world = World::new(seed, lossy(6, Duration::from_micros(300)), password);
        world.join(world.plan_of(1));
        world.up();
        let tasks: Vec<_> = (0..5).map(|_| linger(&mut world, 0, 0)).collect();
        world.rest(Duration::from_millis(seed * 2));
        let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 0, Some(tasks[2]));
        assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
        assert_eq!(world.end(0, tasks[2]).end, TaskResult::Aborted);
        world.rest(SECOND);
        assert_eq!(world.server.tasks.len(), 4);
        let id = manage(&mut world, 0, TmfFunction::ABORT_TASK_SET, 0, None);
        assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
        for task in [0, 1, 3, 4] {
            // These tasks were reported before the answer.
            let outcome =
                world.initiators[0].ended.remove(&tasks[task]).expect("not reported before the answer");
            assert_eq!(outcome.end, TaskResult::Aborted);
        }
        world.rest(2 * SECOND);
        world.is_clean();
    }
}

#[test]
fn a_reset_ends_the_tasks_of_everybody_on_that_unit_and_of_nobody_else() {
    for seed in seeds(6) {
        println!("HYPER_SEED={seed}");
        let mut world = World::new(seed, lossy(10, Duration::from_micros(300)), Some("sesame"));
        world.join(world.plan_of(1));
        world.join(world.plan_of(2));
        world.up();
        let (own, others, elsewhere) =
            (linger(&mut world, 0, 1), linger(&mut world, 1, 1), linger(&mut world, 1, 2));
        world.rest(SECOND);
        let id = manage(&mut world, 0, TmfFunction::LOGICAL_UNIT_RESET, 1, None);
        assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
        assert_eq!(world.end(0, own).end, TaskResult::Aborted);
        assert_eq!(world.end(1, others).end, TaskResult::Aborted, "it is told that no status comes");
        world.rest(SECOND);
        assert_eq!(world.server.tasks.len(), 1);
        let id = manage(&mut world, 1, TmfFunction::ABORT_TASK, 0, Some(elsewhere));
        assert_eq!(answer(&mut world, 1, id), Some(TmfResult::COMPLETE));
        world.rest(2 * SECOND);
        world.is_clean();
    }
}

#[test]
fn late_data_of_an_aborted_task_never_reaches_the_medium() {
    let seeds = seeds(12);
    let mut aborted = 0;
    for seed in seeds.iter().copied() {
        println!("HYPER_SEED={seed}");
        let mut world = World::new(seed, lossy(4, Duration::from_millis(1)), None);
        world.server.fetch_max = 8 << 10;
        world.join(world.plan_of(1));
        world.up();
        let data = pattern(0, 0, 2000, 6);
        let request = Request {
            data_out: Bytes::copied_from(&data).into(),
            ..Request::new(0, cdb(LATE_WRITE, 0, 2000))
        };
        let task = world.submit(0, request);
        let begun = world.run(10 * SECOND, |world| !world.server.tasks.is_empty());
        assert!(begun);
        let name: TaskRef = *world.server.tasks.keys().next().unwrap();
        // All of its data is requested, and the task is aborted while the data arrives.
        for from in (0..data.len()).step_by(8 << 10) {
            world.engine.fetch(name, from as u32, 8 << 10);
        }
        world.rest(Duration::from_micros(200 * seed));
        let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 0, Some(task));
        let mut before = None;
        let answered = world.run(30 * SECOND, |world| world.initiators[0].managed.contains_key(&id));
        assert!(answered);
        if world.initiators[0].managed[&id] == Some(TmfResult::COMPLETE) {
            before = Some(world.server.disks.get(&0).cloned());
        }
        world.rest(3 * SECOND);
        if let Some(before) = before {
            assert!(world.server.disks.get(&0).cloned() == before, "the medium changed after the abort");
            assert_eq!(world.end(0, task).end, TaskResult::Aborted);
            aborted += 1;
        }
        // The slot is used again at once, for other data.
        let write = world.write(0, 0, 3000, 200, 1);
        world.good(0, write);
        let read = world.read(0, 0, 3000, 200);
        assert!(world.good(0, read) == pattern(0, 3000, 200, 1));
        world.rest(2 * SECOND);
        world.is_clean();
    }
    assert!(aborted > 6 || seeds.len() == 1, "{aborted} of {} came in time", seeds.len());
}

#[test]
fn a_task_that_ended_is_not_found_and_its_status_counts() {
    let mut world = World::new(2, FramePlan::CLEAN, None);
    world.join(world.plan_of(1));
    world.up();
    let task = world.count(0, 0, 1, TaskAttribute::SIMPLE);
    let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 0, Some(task));
    assert_eq!(answer(&mut world, 0, id), Some(TmfResult::NO_TASK));
    world.good(0, task);
    world.rest(SECOND);
    world.is_clean();
}

#[test]
fn an_unsent_task_is_ended_without_a_word_to_the_target() {
    let mut world = World::new(2, FramePlan::CLEAN, None);
    world.join(world.plan_of(1));
    let task = world.count(0, 0, 1, TaskAttribute::SIMPLE);
    let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 0, Some(task));
    assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
    assert_eq!(world.end(0, task).end, TaskResult::NotSent);
    world.up();
    world.rest(SECOND);
    assert_eq!(world.server.executed, 0);
    world.is_clean();
}

#[test]
fn a_function_with_too_little_protection_is_refused() {
    let mut world = World::new(2, FramePlan::CLEAN, Some("sesame"));
    world.config.levels = [(1, Level::Encrypt)].into();
    world.join(world.plan_of(1));
    world.up();
    let task = linger(&mut world, 0, 0);
    world.rest(SECOND);
    // The logical unit demands more than the session's plan, which the initiator does not know yet.
    let id = manage(&mut world, 0, TmfFunction::LOGICAL_UNIT_RESET, 1, None);
    assert_eq!(answer(&mut world, 0, id), Some(TmfResult::NOT_AUTHORIZED));
    let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 0, Some(task));
    assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
    world.end(0, task);
    world.rest(SECOND);
    world.is_clean();
}

#[test]
fn a_session_that_is_given_up_is_built_anew_and_only_what_may_run_again_does() {
    let mut world = World::new(1, lossy(0, Duration::from_micros(300)), None);
    world.join(world.plan_of(1));
    world.up();
    let again = world.submit(0, Request { replay: true, ..Request::new(0, cdb(LINGER, 0, 0)) });
    let lost = linger(&mut world, 0, 0);
    world.rest(SECOND);
    let before = world.initiators[0].session.progress(again);
    world.rest(SECOND);
    assert!(before.is_some());
    assert_eq!(world.initiators[0].session.progress(again), before, "it gets no answer");
    let now = world.now;
    world.initiators[0].session.rebuild_session(now);
    assert_eq!(world.end(0, lost).end, TaskResult::Lost);
    let up = world.run(60 * SECOND, |world| world.initiators[0].session.is_up());
    assert!(up, "it is not built anew");
    world.rest(SECOND);
    let stats = world.initiators[0].session.stats();
    assert_eq!((stats.logins, stats.replays), (2, 1));
    assert_eq!(world.server.tasks.len(), 1, "the target ended those of the old session");
}

/// Returns a world with an initiator of which a read of logical unit 1 holds all the memory for Data-In and
/// does not end, and which has two more reads of it under way, the last one shorter.
fn hung() -> (World, [TaskId; 3]) {
    let limits = EngineLimits { unsent_bytes_max: 128 << 10, ..EngineLimits::default() };
    let mut world = World::with(1, FramePlan::CLEAN, None, limits, 1500);
    world.join(world.plan_of(1));
    world.up();
    let linger = Request { data_in_len: 128 << 10, ..Request::new(1, cdb(LINGER, 0, 0)) };
    let holder = world.submit(0, linger);
    world.rest(SECOND);
    let waiting = [100, 1].map(|blocks| world.read(0, 1, 0, blocks));
    world.rest(SECOND);
    assert_eq!((world.server.tasks.len(), world.server.executed), (1, 1), "they wait for memory");
    (world, [holder, waiting[0], waiting[1]])
}

#[test]
fn a_logical_unit_that_answers_nothing_holds_up_no_other() {
    let (mut world, [holder, first, last]) = hung();
    for lba in 0..4 {
        let write = world.write(0, 2, lba * 1000, 600, 3);
        world.good(0, write);
        // Longer than the limit of the session.
        let reads =
            [(lba * 1000, 600), (lba * 1000, 1)].map(|(lba, blocks)| (world.read(0, 2, lba, blocks), blocks));
        for (read, blocks) in reads {
            assert!(world.good(0, read) == pattern(2, lba * 1000, blocks, 3));
        }
    }
    let done = [first, last].map(|task| world.initiators[0].ended.contains_key(&task));
    assert_eq!((done, world.server.tasks.len()), ([false; 2], 1));
    let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 1, Some(holder));
    assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
    assert_eq!(world.end(0, holder).end, TaskResult::Aborted);
    world.good(0, first);
    world.good(0, last);
    world.rest(2 * SECOND);
    world.is_clean();
}

#[test]
fn functions_pass_the_commands_that_wait_for_memory() {
    let (mut world, [holder, first, last]) = hung();
    let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 1, Some(first));
    assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
    assert_eq!(world.end(0, first).end, TaskResult::NotSent);
    for (function, result) in [
        (TmfFunction::QUERY_TASK_SET, TmfResult::SUCCEEDED),
        (TmfFunction::LOGICAL_UNIT_RESET, TmfResult::COMPLETE),
    ] {
        let id = manage(&mut world, 0, function, 1, None);
        assert_eq!(answer(&mut world, 0, id), Some(result));
    }
    assert_eq!(world.end(0, holder).end, TaskResult::Aborted);
    let outcome = world.end(0, last);
    assert_eq!(status(&outcome), Some(transport::status::BUSY));
    assert_eq!(world.server.executed, 1, "no command that waited was executed");
    let again = world.read(0, 1, 0, 100);
    world.good(0, again);
    world.rest(2 * SECOND);
    world.is_clean();
}

#[test]
fn task_management_and_checks_pass_commands_that_hold_all_slots() {
    for (password, exchanges) in [(None, 2), (Some("sesame"), 8), (None, 128)] {
        let parameters = Parameters { exchanges, ..EngineLimits::default().parameters };
        let limits = EngineLimits { parameters, ..EngineLimits::default() };
        let mut world = World::with(1, FramePlan::CLEAN, password, limits, 1500);
        world.join(world.plan_of(1));
        world.up();
        // A unit answers nothing, and the commands of another one wait for those.
        let tasks: Vec<_> = (0..2 * exchanges).map(|_| linger(&mut world, 0, 1)).collect();
        let other = world.count(0, 2, 1, TaskAttribute::SIMPLE);
        world.rest(SECOND);
        let held = world.server.tasks.len();
        let kept = (usize::from(exchanges) / 4).clamp(1, 8);
        assert_eq!(held, usize::from(exchanges) - kept);
        if exchanges > 7 {
            let check = Request { is_identity_check: true, ..Request::new(3, cdb(COUNT, 2, 0)) };
            let check = world.submit(0, check);
            world.good(0, check);
        }
        let id = manage(&mut world, 0, TmfFunction::ABORT_TASK, 0, Some(tasks[0]));
        assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
        assert_eq!(world.end(0, tasks[0]).end, TaskResult::Aborted);
        assert!(!world.server.order.contains(&1), "the next command has taken the slot");
        let id = manage(&mut world, 0, TmfFunction::LOGICAL_UNIT_RESET, 1, None);
        assert_eq!(answer(&mut world, 0, id), Some(TmfResult::COMPLETE));
        world.good(0, other);
        world.rest(SECOND);
        assert_eq!(world.server.tasks.len(), 0);
        world.is_clean();
    }
}
