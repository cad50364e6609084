//! Snapshots of several volumes at one point in time.

use super::*;
use crate::pool::is_id;
use crate::record::Group;

/// Two volumes; the first one is published.
fn two(volumes: &Volumes) -> String {
    let first = volumes.create(&wanted("first")).unwrap().id;
    publish(volumes, &first, NODE, Mode::MultiNodeMultiWriter).unwrap();
    let second = volumes.create(&wanted("second")).unwrap().id;
    format!("{first} {second}")
}

fn ids(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn only_group(volumes: &Volumes) -> Group {
    let records = volumes.records();
    assert_eq!(records.groups.len(), 1);
    records.groups.values().next().unwrap().clone()
}

fn snapshots(volumes: &Volumes) -> Vec<Snapshot> {
    volumes.list_snapshots(0, "", "", "").unwrap().0
}

/// The files of snapshots and groups.
fn files(bed: &Bed) -> Vec<String> {
    let is_of_volume = |path: &String| path.starts_with("v-") || path.contains("/v-");
    bed.files().into_iter().filter(|path| !is_of_volume(path)).collect()
}

fn delete(volumes: &Volumes, text: &str) -> CsiResult<()> {
    let (group, members) = text.split_once(' ').unwrap();
    volumes.delete_group(group, &ids(members))
}

/// Makes a group, and names it and its snapshots.
fn grouped(volumes: &Volumes) -> String {
    let (group, _) = volumes.create_group("g", &ids(&two(volumes))).unwrap();
    format!("{} {}", group.id, group.snapshots.join(" "))
}

#[test]
fn a_killed_group_is_whole_or_nothing() {
    let check = |bed: &Bed, volumes: &Volumes, text: &str| {
        let group = only_group(volumes);
        let made = snapshots(volumes);
        let mut of: Vec<&str> = made.iter().map(|one| one.volume.as_str()).collect();
        of.sort_unstable();
        let mut expected = ids(text);
        expected.sort();
        assert_eq!(of, expected);
        assert!(made.iter().all(|one| one.group.as_ref() == Some(&group.id) && one.bytes == 4 * MIB));
        let mut names = vec![format!(".csi/groups/{}.json", group.id)];
        names.extend(made.iter().map(|one| format!(".csi/snapshots/{}.json", one.id)));
        names.extend(made.iter().map(|one| format!("{}.img", one.id)));
        let mut left = files(bed);
        left.retain(|path| !path.contains("secrets"));
        assert_eq!(left, names);
        for one in &made {
            assert_eq!(volumes.pool.len(&one.id).unwrap(), 4 * MIB);
        }
    };
    let create = |volumes: &Volumes, text: &str| volumes.create_group("g", &ids(text)).map(drop);
    let steps = kill_everywhere("group", two, create, check);
    assert!(steps >= 8, "{steps}");
    fail_everywhere("group", two, create, check);
}

#[test]
fn a_killed_group_that_is_not_repeated_leaves_nothing_before_its_record() {
    for steps in 0.. {
        let bed = Bed::new(&format!("group-lost-{steps}"));
        let volumes = bed.open();
        let text = two(&volumes);
        kill_after(Some(steps));
        let ended = volumes.create_group("g", &ids(&text));
        kill_after(None);
        drop(volumes);
        let volumes = bed.open();
        let groups = volumes.records().groups.len();
        assert_eq!(snapshots(&volumes).len(), 2 * groups);
        assert_eq!(volumes.pool.being_made().unwrap(), [""; 0]);
        let files = files(&bed).into_iter().filter(|path| !path.contains("secrets")).count();
        assert_eq!(files, if groups == 1 { 5 } else { 0 }, "{:?}", bed.files());
        if ended.is_ok() {
            return;
        }
    }
}

#[test]
fn a_killed_removal_of_a_group_ends_with_nothing() {
    let check = |bed: &Bed, volumes: &Volumes, _: &str| {
        assert!(snapshots(volumes).is_empty() && volumes.records().groups.is_empty());
        assert!(files(bed).iter().all(|path| path.contains("secrets")), "{:?}", bed.files());
    };
    let steps = kill_everywhere("ungroup", grouped, delete, check);
    assert!(steps >= 6, "{steps}");
    fail_everywhere("ungroup", grouped, delete, check);
}

#[test]
fn volumes_that_are_used_are_copied_by_the_daemon_and_the_others_are_not() {
    let bed = Bed::new("group-mixed");
    let volumes = bed.open();
    let text = two(&volumes);
    let (_, made) = volumes.create_group("g", &ids(&text)).unwrap();
    for one in made {
        let begins = fs::read(volumes.pool.image(&one.id)).unwrap().starts_with(BY_DAEMON);
        assert_eq!(begins, one.volume == ids(&text)[0]);
    }
}

#[test]
fn a_repeated_group_is_returned_and_another_one_of_its_name_is_refused() {
    let bed = Bed::new("group-again");
    let volumes = bed.open();
    let mut of = ids(&two(&volumes));
    let third = made(&volumes);
    let first = volumes.create_group("g", &of).unwrap();
    of.reverse();
    assert_eq!(volumes.create_group("g", &of).unwrap(), first);
    assert_eq!(code(volumes.create_group("g", &of[..1])), Code::AlreadyExists);
    assert_eq!(code(volumes.create_group("g", &[of[0].clone(), third.clone()])), Code::AlreadyExists);
    // Snapshots have names of their own.
    assert_eq!(volumes.create_snapshot("g", &third).unwrap().group, None);
    // A volume that is gone does not matter any more.
    volumes.unpublish(&of[1], None).unwrap();
    volumes.delete(&of[1]).unwrap();
    assert_eq!(volumes.create_group("g", &of).unwrap(), first);
}

#[test]
fn what_is_no_group_is_refused() {
    let bed = Bed::new("group-refused");
    let volumes = bed.open();
    let of = ids(&two(&volumes));
    let gone = format!("v-{}", "0".repeat(32));
    let create = |of: &[String]| code(volumes.create_group("g", of));
    assert_eq!(create(&[]), Code::InvalidArgument);
    assert_eq!(create(&[of[0].clone(), of[0].clone()]), Code::InvalidArgument);
    assert_eq!(create(&[of[0].clone(), gone]), Code::NotFound);
    let many: Vec<String> = (0..65).map(|number| format!("v-{number:032x}")).collect();
    assert_eq!(create(&many), Code::InvalidArgument);
    // A volume that is being published could be written meanwhile.
    let claim = volumes.claim(&of[1]).unwrap();
    assert_eq!(create(&of), Code::Aborted);
    drop(claim);
    assert!(files(&bed).iter().all(|path| path.contains("secrets")), "{:?}", bed.files());
    volumes.create_group("g", &of).unwrap();
}

#[test]
fn the_snapshots_of_a_group_are_removed_together() {
    let bed = Bed::new("group-members");
    let volumes = bed.open();
    let text = grouped(&volumes);
    let (group, members) = text.split_once(' ').unwrap();
    let members = ids(members);
    for member in &members {
        assert_eq!(code(volumes.delete_snapshot(member)), Code::InvalidArgument);
    }
    let alone = volumes.create_snapshot("alone", &made(&volumes)).unwrap().id;
    let with_another = [members.clone(), vec![alone.clone()]].concat();
    for wrong in [&[][..], &members[..1], &with_another] {
        assert_eq!(code(volumes.delete_group(group, wrong)), Code::InvalidArgument);
        assert_eq!(code(volumes.group(group, wrong)), Code::InvalidArgument);
    }
    let mut turned = members.clone();
    turned.reverse();
    assert_eq!(volumes.group(group, &turned).unwrap().1.len(), 2);
    let copy = NewVolume { source: Some(Source::Snapshot(members[0].clone())), ..wanted("copy") };
    volumes.create(&copy).unwrap();
    volumes.delete_group(group, &turned).unwrap();
    volumes.delete_group(group, &turned).unwrap();
    volumes.delete_group("none", &[]).unwrap();
    assert_eq!(code(volumes.group(group, &members)), Code::NotFound);
    // A group that is gone says nothing about a snapshot of its own.
    volumes.delete_group(group, std::slice::from_ref(&alone)).unwrap();
    assert_eq!(snapshots(&volumes).iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [alone]);
    assert!(is_id(group));
}

#[test]
fn a_group_without_one_of_its_records_stops_the_start() {
    let bed = Bed::new("group-damaged");
    let volumes = bed.open();
    let text = grouped(&volumes);
    drop(volumes);
    let member = ids(&text)[1].clone();
    fs::remove_file(bed.folder.join(format!(".csi/snapshots/{member}.json"))).unwrap();
    let error = bed.try_open().map(drop).unwrap_err();
    assert!(error.message.contains("is missing"), "{error}");
    assert!(bed.files().contains(&format!("{member}.img")));
}

#[test]
fn the_record_of_a_snapshot_without_a_group_is_as_before() {
    let bed = Bed::new("group-versions");
    let volumes = bed.open();
    let alone = volumes.create_snapshot("alone", &made(&volumes)).unwrap();
    let read = |id: &str| fs::read_to_string(bed.folder.join(format!(".csi/snapshots/{id}.json"))).unwrap();
    // Earlier versions refuse fields that they do not know.
    assert!(!read(&alone.id).contains("group"));
    let text = grouped(&volumes);
    assert!(read(&ids(&text)[1]).contains("\"group\":\"g-"));
}
