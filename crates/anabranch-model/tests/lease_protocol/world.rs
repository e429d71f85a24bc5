//! One state of the explored world: the store, two workers, and what is on its way between them.

use crate::rules::{Change, Id, Row, WorkerRowState, WorkerWrite};

pub(crate) const WORKERS: usize = 2;
pub(crate) const IDS: usize = 4;
pub(crate) const MAX_LEASES: usize = 2;

/// Everything that can differ between two moments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) tick: u8,
    pub(crate) hearts: [WorkerRowState; IDS],
    pub(crate) leases: [Row; MAX_LEASES],
    pub(crate) agents: [ModelWorker; WORKERS],
    /// The highest checkpoint that any worker was told to be stored, per lease.
    pub(crate) acked: [u8; MAX_LEASES],
}

/// What one worker has in mind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ModelWorker {
    /// Its id, one per join.
    pub(crate) id: Id,
    /// Whether it takes itself for a member.
    pub(crate) joined: bool,
    /// The counter of its own heart, as it knows it.
    pub(crate) counter: u8,
    /// Ticks since its last successful beat was sent; stops at the longest lease time.
    pub(crate) age: u8,
    pub(crate) beat: BeatInFlight,
    /// A beat that it gave up, and that may still land.
    pub(crate) late_beat: Option<(Id, u8)>,
    /// What it saw of each id's heart.
    pub(crate) seen: [Seen; IDS],
    pub(crate) call: Call,
    /// A write that it gave up, and that may still land.
    pub(crate) late: Option<Request>,
    pub(crate) minds: [LeaseBelief; MAX_LEASES],
}

/// A beat on its way, with the ticks since it was first sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BeatInFlight {
    None,
    Sent(u8),
    Answered(u8, bool),
    Unresolved(u8),
}

/// What a worker saw of a heart, with the ticks since the look that saw it so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Seen {
    Never,
    Alive(u8, u8),
    Gone(u8),
    Fenced,
}

/// Any other write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Request {
    Lease(u8, Change),
    Heart(Id, WorkerWrite),
}

/// A write on its way; one at a time for each worker, beats aside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Call {
    None,
    Sent(Request),
    Answered(Request, Answer),
    Unresolved(Request),
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer {
    Refused,
    /// A worker's row was written.
    Heart,
    /// A lease's row was written, and this is it.
    Lease(Row),
}

/// What a worker has in mind about a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LeaseBelief {
    /// The row as it last listed it.
    pub(crate) listed: Option<Listed>,
    /// The term under which it holds the lease.
    pub(crate) hold: Option<u8>,
    /// Whether it sent a pass or a release under that term.
    pub(crate) silent: bool,
    /// Up to where it knows the row to be done.
    pub(crate) checkpoint: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Listed {
    pub(crate) owner: Option<Id>,
    pub(crate) term: u8,
    pub(crate) named: Option<Id>,
    pub(crate) checkpoint: u8,
}

impl World {
    /// Two members that have just beaten. Lease i belongs to worker i if `owned`, else to nobody.
    pub(crate) fn start(owned: bool) -> Self {
        let first_owner = |lease: usize| owned.then_some(2 * small(lease));
        let row = |lease| Row {
            owner: first_owner(lease),
            term: u8::from(owned),
            named: None,
            checkpoint: 0,
            last: 0,
        };
        let mind = |worker: usize, lease: usize| LeaseBelief {
            listed: None,
            hold: (owned && worker == lease).then_some(1),
            silent: false,
            checkpoint: 0,
        };
        let agent = |worker: usize| ModelWorker {
            id: 2 * small(worker),
            joined: true,
            counter: 0,
            age: 0,
            beat: BeatInFlight::None,
            late_beat: None,
            seen: [Seen::Never; IDS],
            call: Call::None,
            late: None,
            minds: [mind(worker, 0), mind(worker, 1)],
        };
        Self {
            tick: 0,
            hearts: [
                WorkerRowState::Alive(0),
                WorkerRowState::Absent,
                WorkerRowState::Alive(0),
                WorkerRowState::Absent,
            ],
            leases: [row(0), row(1)],
            agents: [agent(0), agent(1)],
            acked: [0; MAX_LEASES],
        }
    }

    /// A tick of every clock at once. No age counts beyond `oldest`.
    pub(crate) fn after_a_tick(mut self, oldest: u8) -> Self {
        let older = |age: u8| (age + 1).min(oldest);
        self.tick += 1;
        for agent in &mut self.agents {
            agent.age = older(agent.age);
            agent.beat = match agent.beat {
                BeatInFlight::None => BeatInFlight::None,
                BeatInFlight::Sent(age) => BeatInFlight::Sent(older(age)),
                BeatInFlight::Answered(age, ok) => BeatInFlight::Answered(older(age), ok),
                BeatInFlight::Unresolved(age) => BeatInFlight::Unresolved(older(age)),
            };
            for seen in &mut agent.seen {
                *seen = match *seen {
                    Seen::Alive(counter, age) => Seen::Alive(counter, older(age)),
                    Seen::Gone(age) => Seen::Gone(older(age)),
                    other => other,
                };
            }
        }
        self
    }
}

impl ModelWorker {
    /// Leaves or stops: it forgets everything but what is on its way.
    pub(crate) fn stop(&mut self) {
        if let Call::Sent(request) = self.call {
            self.late = Some(request);
        }
        if let BeatInFlight::Sent(_) = self.beat {
            self.late_beat = Some((self.id, self.counter));
        }
        self.joined = false;
        self.call = Call::None;
        self.beat = BeatInFlight::None;
        for mind in &mut self.minds {
            *mind = LeaseBelief { listed: mind.listed, hold: None, silent: false, checkpoint: 0 };
        }
    }
}

pub(crate) fn small(number: usize) -> u8 {
    u8::try_from(number).expect("ids and leases are few")
}
