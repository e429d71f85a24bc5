//! A state of the exploration: rows, writes in flight and the knowledge of each worker.

use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::lease::{
    Checkpoint, HandOver, Lease, LeaseChange, LeaseKey, LeaseToken, NewLease, Nonce, WorkerId,
    Write,
};
use anabranch_model::position::Position;
use anabranch_model::sequence::SequenceNumber;

pub(crate) const LEASE: u8 = 2;
pub(crate) const TICKS: u8 = 2;
pub(crate) const END: u8 = 2;

/// A deliberate flaw of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    None,
    /// A release checks only the owner, as Java's evict does.
    ReleasesAsJavaDoes,
    TakeSkipsTheCounter,
    CheckpointSkipsTheCounter,
    /// The deadline after a renewal resolved by a read-back counts from its own sending, though an
    /// older write may have advanced the counter.
    ResolvedRenewalCountsFromItself,
    DeadlineFromTheReply,
    RenewsAfterItsExpiry,
    ReadBackComparesTheCounterOnly,
    TakesFromABeatingOwner,
    GoesOnAfterARelease,
    GoesOnAfterAPass,
    PassSkipsTheCounter,
    /// A hand-over increments the counter by one, as a take does.
    PassLooksLikeATake,
    /// An owner whose hand-over was refused, or not answered, continues under the counter that it
    /// knows.
    ReadsOnWithoutTakingAgain,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Row {
    pub(crate) owner: Option<u8>,
    pub(crate) counter: u8,
    pub(crate) checkpoint: u8,
    /// True if the other worker requests the lease.
    pub(crate) named: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LeaseAction {
    Renew,
    Take,
    Release,
    Checkpoint {
        from: u8,
        to: u8,
    },
    /// A request of worker 1 to worker 0.
    Name,
    Withdraw,
    /// A hand-over by worker 0 to worker 1.
    Pass,
}

/// A write, with the counter that its sender knew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Request {
    pub(crate) by: u8,
    pub(crate) counter: u8,
    pub(crate) act: LeaseAction,
}

/// A write in flight, with the ticks since it was first sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Call {
    None,
    Sent(Request, u8),
    /// The row after it if it was applied, or the current row if it was refused.
    Answered(Request, u8, Result<Row, Row>),
    Unresolved(Request, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ModelWorker {
    pub(crate) hold: Option<u8>,
    pub(crate) silent: bool,
    /// True if a row in a reply showed a request of the other worker.
    pub(crate) asked: bool,
    pub(crate) checkpoint: u8,
    /// Ticks since its last successful write was sent.
    pub(crate) age: u8,
    pub(crate) call: Call,
    /// A write that it gave up, and that may still arrive.
    pub(crate) late: Option<Request>,
    /// Ticks since the sending of the oldest write that may have advanced the counter unnoticed.
    pub(crate) doubt: Option<u8>,
    /// The last row it polled, and the ticks since its counter changed.
    pub(crate) seen: Option<(Row, u8)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) tick: u8,
    pub(crate) row: Row,
    pub(crate) agents: [ModelWorker; 2],
    pub(crate) acked: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Tick,
    Look(usize),
    Send(usize, LeaseAction),
    Arrives(usize),
    Reply(usize),
    GivenUp(usize, bool),
    ReadBack(usize),
    Abandon(usize),
    LateLands(usize),
}

/// Returns a row as a poll shows it. The checkpoint is not read there.
pub(crate) fn listed(row: Row) -> Row {
    Row { checkpoint: 0, ..row }
}

pub(crate) fn older(age: u8) -> u8 {
    (age + 1).min(LEASE)
}

pub(crate) fn change(request: Request) -> LeaseChange {
    let (owner, term) = (worker(request.by), u64::from(request.counter));
    match request.act {
        LeaseAction::Name => return LeaseChange::RequestHandOver { taker: owner, term },
        LeaseAction::Withdraw => return LeaseChange::WithdrawRequest { taker: owner, term },
        _ => {}
    }
    let hold = LeaseToken { key: key(), owner, term };
    let write = match request.act {
        LeaseAction::Name | LeaseAction::Withdraw => unreachable!("an owner asks nobody"),
        LeaseAction::Pass => hold.hand_over(&worker(1 - request.by), Nonce(0)),
        LeaseAction::Renew => hold.renew(Nonce(0)),
        LeaseAction::Take => hold.retake(Nonce(0)),
        LeaseAction::Release => hold.release(Nonce(0)),
        LeaseAction::Checkpoint { from, to: END } => hold.end(at(from), Nonce(0)),
        LeaseAction::Checkpoint { from, to } => hold.checkpoint(at(from), at(to), None, Nonce(0)),
    };
    let Write::Lease { change, .. } = write else { unreachable!("a hold writes to its lease") };
    change
}

pub(crate) fn unpack(row: Row) -> Lease {
    let range = HashRange::new(HashKey(0), HashKey(1)).expect("0 is below 1");
    let checkpoint = Position::TrimHorizon;
    let new = NewLease { shard: key().shard, parents: vec![], range, checkpoint };
    let taker = row.owner.filter(|_| row.named).map(|owner| worker(1 - owner));
    Lease {
        owner: row.owner.map(worker),
        hand_over: taker.map_or(HandOver::None, |taker| HandOver::Requested { taker }),
        term: row.counter.into(),
        checkpoint: at(row.checkpoint),
        ..new.into_lease(&key().stream)
    }
}

pub(crate) fn pack(lease: &Lease) -> Row {
    let checkpoint = (0..=END).find(|i| lease.checkpoint == at(*i));
    Row {
        owner: lease.owner.as_ref().map(|owner| u8::from(*owner == worker(1))),
        counter: u8::try_from(lease.term).expect("the walk bounds it"),
        checkpoint: checkpoint.expect("no other checkpoint is written"),
        named: lease.hand_over != HandOver::None,
    }
}

pub(crate) fn key() -> LeaseKey {
    LeaseKey::new("stream", "shard")
}

pub(crate) fn worker(index: u8) -> WorkerId {
    WorkerId::of_kcl_join("worker", index.into(), 1)
}

pub(crate) fn at(checkpoint: u8) -> Checkpoint {
    Checkpoint::at(match checkpoint {
        0 => Position::TrimHorizon,
        END => Position::ShardEnd,
        n => {
            let sequence = SequenceNumber::from_limbs(0, 0, n.into()).expect("it is small");
            Position::At { sequence, sub: 0 }
        }
    })
}
