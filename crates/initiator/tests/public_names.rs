//! Shows which names a program finds at the root, and that futures can move between threads.
#![allow(unused_imports, reason = "the imports are the test")]

use targe_initiator::{
    AbortHandle, Asc, AsyncMessage, BadUrl, Bytes, Caching, Capacity, Cdb, Client, Command, CommandError,
    CommandHandle, DataList, Disk, Durability, EnvSecrets, Error, EscalationStep, Event, Geometry, Identity,
    Lba, LogicalUnit, Lun, OpenOptions, OtherDevice, Path, PathError, PlanError, Reply, Residual,
    ResponseFuture, SecretError, Secrets, Sense, SenseKey, Session, SessionError, SessionLoss, SessionStats,
    SessionUp, Slot, StandardInquiry, Status, SubmitError, TaskAttribute, TmfFunction, TmfResult,
    UnconfirmedDevice, Url, block_on, blocking, discover, driver, endpoint,
};

use targe_initiator::discover::{Discovered, Discovery, FoundUnit, targets, units};
use targe_initiator::driver::{Driver, DriverEvent, ProtocolPlan, SessionId, TextAnswer, WAITING_MAX, plan};
use targe_initiator::endpoint::{
    Endpoint, IscsiName, KEYS, Login, Options, Protection, Scheme, TargetAddress, Transport,
};

/// Takes what an executor with several threads takes.
fn spawn(_: impl Future<Output = Result<(), Error>> + Send + 'static) {}

#[test]
fn futures_handles_and_errors_can_move_between_threads() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<Client>();
    is_shared::<Disk>();
    is_shared::<Session>();
    is_shared::<blocking::Disk>();
    is_shared::<Error>();
    spawn(async {
        let client = Client::new()?;
        let url = "iscsi://192.0.2.7/iqn.2026-01.com.example:disk/0".to_owned();
        let disk = OpenOptions::new().secrets(EnvSecrets).watch(|_| true).open(&client, url).await?;
        let mut block = vec![0; disk.block_size()];
        disk.read_at(0, &mut block).await?;
        disk.write_at(0, &block).await?;
        disk.discard(0, disk.size()).await?;
        disk.flush().await
    });
}

#[test]
fn an_error_boxes_as_any_other() {
    let parsed: Result<Url, BadUrl> = "nbd://192.0.2.7".parse();
    let boxed: Box<dyn std::error::Error + Send + Sync> = Error::from(parsed.unwrap_err()).into();
    assert!(boxed.to_string().contains("iscsi://"), "{boxed}");
}
