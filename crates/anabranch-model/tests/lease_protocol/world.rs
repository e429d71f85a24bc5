//! One state of the explored world: the store, two workers, and the messages between them.

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
    /// Highest acknowledged checkpoint of each lease.
    pub(crate) acked: [u8; MAX_LEASES],
}

/// Knowledge of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ModelWorker {
    /// Its id, one per join.
    pub(crate) id: Id,
    /// True if it believes that it has joined.
    pub(crate) joined: bool,
    /// Its own heartbeat counter, as it knows it.
    pub(crate) counter: u8,
    /// Ticks since its last successful heartbeat was sent; stops at the longest lease time.
    pub(crate) age: u8,
    pub(crate) beat: BeatInFlight,
    /// A heartbeat that it gave up, and that may still arrive.
    pub(crate) late_beat: Option<(Id, u8)>,
    /// Last observation of each id's worker row.
    pub(crate) seen: [Seen; IDS],
    pub(crate) call: Call,
    /// A write that it gave up, and that may still arrive.
    pub(crate) late: Option<Request>,
    pub(crate) minds: [LeaseBelief; MAX_LEASES],
}

/// A heartbeat in flight, with the ticks since it was first sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BeatInFlight {
    None,
    Sent(u8),
    Answered(u8, bool),
    Unresolved(u8),
}

/// Observation of a worker row, with the ticks since the poll that first showed it so.
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

/// A write in flight; one at a time for each worker, apart from heartbeats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Call {
    None,
    Sent(Request),
    Answered(Request, Answer),
    Unresolved(Request),
}

/// Result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer {
    Refused,
    /// A worker's row was written.
    Heart,
    /// A lease row was written; this is its new content.
    Lease(Row),
}

/// Knowledge of a worker about a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LeaseBelief {
    /// The row as it last listed it.
    pub(crate) listed: Option<Listed>,
    /// Term under which it holds the lease.
    pub(crate) hold: Option<u8>,
    /// True if it sent a hand-over or a release under that term.
    pub(crate) silent: bool,
    /// Checkpoint of the row, as far as it knows.
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
    /// Returns a state with two workers that have just sent a heartbeat. Lease i belongs to worker
    /// i if `owned`; otherwise the leases have no owner.
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

    /// Advances every clock by one tick. No age counts beyond `oldest`.
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
    /// Leaves or crashes: forgets everything except messages in flight.
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
