//! The possible next steps of two workers and the network between them, and the invariants.
//!
//! Every step is optional, so a slow, paused or dead worker is one that takes none. A read is one
//! step: a slower reply only makes its reader later, never less careful.

use crate::flaw::Flaw;
use crate::rules::{Change, END, Id, Row, Rules, WorkerRowState, WorkerWrite};
use crate::world::{
    BeatInFlight, Call, IDS, Listed, ModelWorker, Request, Seen, WORKERS, World, small,
};

/// Situations that must be reachable.
pub(crate) const GOALS: [&str; 5] = [
    "b delivers what was a's",
    "a delivers what was b's",
    "a delivers under its second id",
    "b goes on after a checkpoint",
    "the shard ends",
];

/// Scope of an exploration.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one kind of event, on or off")]
pub(crate) struct Scope {
    pub(crate) leases: usize,
    /// True if the leases have owners at the start.
    pub(crate) owned: bool,
    pub(crate) ticks: u8,
    /// Lease time of each worker, in ticks. Two are enough to expose every shortcut.
    pub(crate) lease_times: [u8; WORKERS],
    /// Highest heartbeat counter of each worker.
    pub(crate) beats: [u8; WORKERS],
    /// Highest term of a lease.
    pub(crate) terms: u8,
    /// First worker that observes heartbeats and fences; all later ones do as well.
    pub(crate) watchers_from: usize,
    /// True if worker a leaves, crashes and joins again.
    pub(crate) rejoin: bool,
    /// True if workers request and hand over leases.
    pub(crate) hand_over: bool,
    pub(crate) release: bool,
    pub(crate) checkpoints: bool,
    /// True if requests and replies get lost.
    pub(crate) losses: bool,
    /// True if a write can arrive after its sender gave it up.
    pub(crate) late: bool,
    /// True if a heartbeat can arrive after its sender gave it up.
    pub(crate) late_beats: bool,
    /// True if a worker may forget a write instead of reading back.
    pub(crate) abandon: bool,
}

/// One event. The first number is the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Tick,
    Beat(usize),
    BeatArrives(usize),
    BeatReply(usize),
    BeatGivenUp(usize),
    BeatLeftToLandLate(usize),
    BeatReadBack(usize),
    BeatRetry(usize),
    LateBeatLands(usize),
    Look(usize, Id),
    List(usize, usize),
    Send(usize, Request),
    Arrives(usize),
    Reply(usize),
    GivenUp(usize),
    LeftToLandLate(usize),
    ReadBack(usize),
    Abandon(usize),
    LateLands(usize),
    Stop(usize),
    Join(usize),
    DeleteHeart(usize, Id),
}

/// The steps of one exploration.
pub(crate) struct Moves<'a> {
    scope: &'a Scope,
    pub(crate) flaw: Flaw,
    pub(crate) rules: Rules,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(scope: &'a Scope, flaw: Flaw) -> Self {
        Self { scope, flaw, rules: Rules::new(flaw) }
    }

    /// Checks the invariants of a state.
    pub(crate) fn check(&self, world: &World) -> Result<(), String> {
        for lease in 0..self.scope.leases {
            if world.agents.iter().all(|agent| self.may_deliver(agent, lease)) {
                return Err(format!("both workers may deliver lease {lease}"));
            }
            if world.leases[lease].checkpoint < world.acked[lease] {
                return Err(format!("lease {lease} lacks a checkpoint that was acknowledged"));
            }
        }
        Ok(())
    }

    /// Returns which of the goals a state reaches.
    pub(crate) fn goals(&self, world: &World) -> [bool; GOALS.len()] {
        let [a, b] = &world.agents;
        [
            self.may_deliver(b, 0),
            self.may_deliver(a, 1),
            a.id == 1 && self.may_deliver(a, 0),
            self.may_deliver(b, 0) && world.acked[0] > 0,
            world.acked[0] == END,
        ]
    }

    /// Returns a row as a list shows it. The checkpoint is not read there, except by the flaw.
    pub(crate) fn listed(&self, row: Row) -> Listed {
        let reads_it = self.flaw == Flaw::ReadsOnFromTheListedRow;
        let checkpoint = if reads_it { row.checkpoint } else { 0 };
        Listed { owner: row.owner, term: row.term, named: row.named, checkpoint }
    }

    fn may_deliver(&self, agent: &ModelWorker, lease: usize) -> bool {
        let mind = &agent.minds[lease];
        let in_time = self.in_time(agent) || self.flaw == Flaw::RenewsAfterItsExpiry;
        agent.joined && mind.hold.is_some() && !mind.silent && in_time
    }

    /// Returns true while the lease time of a worker is not over.
    pub(crate) fn in_time(&self, agent: &ModelWorker) -> bool {
        agent.age < self.lease_time(agent.id)
    }

    /// Returns the lease time in the row of an id: each worker has two ids.
    fn lease_time(&self, id: Id) -> u8 {
        self.scope.lease_times[usize::from(id / 2)]
    }

    /// Returns how long an observer waits for an id whose counter does not change.
    fn patience(&self, watcher: &ModelWorker, of: usize) -> u8 {
        let by_its_own = self.flaw == Flaw::JudgesByTheWatchersLeaseTime;
        self.lease_time(if by_its_own { watcher.id } else { small(of) })
    }

    /// Returns the longest lease time. An observer that finds no row uses it.
    pub(crate) fn longest(&self) -> u8 {
        self.scope.lease_times.into_iter().max().unwrap_or(0)
    }

    /// Adds all possible next steps.
    pub(crate) fn from(&self, world: &World, steps: &mut Vec<Step>) {
        if world.tick < self.scope.ticks {
            steps.push(Step::Tick);
        }
        for (w, agent) in world.agents.iter().enumerate() {
            self.beats(w, agent, steps);
            self.calls(w, agent, steps);
            if agent.joined {
                self.reads(w, agent, world, steps);
                if agent.call == Call::None && self.in_time(agent) {
                    self.sends(w, agent, world, steps);
                }
            }
            if self.scope.rejoin && w == 0 {
                self.comings_and_goings(w, agent, world, steps);
            }
        }
    }

    fn beats(&self, w: usize, agent: &ModelWorker, steps: &mut Vec<Step>) {
        match agent.beat {
            BeatInFlight::None => {
                let in_time = self.in_time(agent) || self.flaw.resumes_after_expiry();
                if agent.joined && in_time && agent.counter < self.scope.beats[w] {
                    steps.push(Step::Beat(w));
                }
            }
            BeatInFlight::Sent(_) => {
                steps.push(Step::BeatArrives(w));
                if self.scope.losses {
                    steps.push(Step::BeatGivenUp(w));
                }
                if self.scope.late_beats && agent.late_beat.is_none() {
                    steps.push(Step::BeatLeftToLandLate(w));
                }
            }
            BeatInFlight::Answered(..) => {
                steps.push(Step::BeatReply(w));
                if self.scope.losses {
                    steps.push(Step::BeatGivenUp(w));
                }
            }
            BeatInFlight::Unresolved(_) => {
                steps.extend([Step::BeatReadBack(w), Step::BeatRetry(w)]);
            }
        }
        if agent.late_beat.is_some() {
            steps.push(Step::LateBeatLands(w));
        }
    }

    fn calls(&self, w: usize, agent: &ModelWorker, steps: &mut Vec<Step>) {
        match agent.call {
            Call::None => {}
            Call::Sent(_) => {
                steps.push(Step::Arrives(w));
                if self.scope.losses {
                    steps.push(Step::GivenUp(w));
                }
                if self.scope.late && agent.late.is_none() {
                    steps.push(Step::LeftToLandLate(w));
                }
            }
            Call::Answered(..) => {
                steps.push(Step::Reply(w));
                if self.scope.losses {
                    steps.push(Step::GivenUp(w));
                }
            }
            Call::Unresolved(_) => {
                steps.push(Step::ReadBack(w));
                if self.scope.abandon {
                    steps.push(Step::Abandon(w));
                }
            }
        }
        if agent.late.is_some() {
            steps.push(Step::LateLands(w));
        }
    }

    fn reads(&self, w: usize, agent: &ModelWorker, world: &World, steps: &mut Vec<Step>) {
        for lease in 0..self.scope.leases {
            if agent.minds[lease].listed != Some(self.listed(world.leases[lease])) {
                steps.push(Step::List(w, lease));
            }
        }
        for id in (0..IDS).filter(|_| w >= self.scope.watchers_from) {
            let new = sight(agent.seen[id], world.hearts[id]);
            let known = world.hearts[id] != WorkerRowState::Absent || names(agent, id);
            if id != usize::from(agent.id) && known && new != agent.seen[id] {
                steps.push(Step::Look(w, small(id)));
            }
        }
    }

    fn sends(&self, w: usize, agent: &ModelWorker, world: &World, steps: &mut Vec<Step>) {
        for id in (0..IDS).filter(|_| w >= self.scope.watchers_from) {
            if let Seen::Alive(watched, age) = agent.seen[id]
                && age >= self.patience(agent, id)
            {
                let counter = match world.hearts[id] {
                    WorkerRowState::Alive(now) if self.flaw == Flaw::FencesOnANewerCounter => now,
                    _ => watched,
                };
                steps.push(Step::Send(w, Request::Heart(small(id), WorkerWrite::Fence(counter))));
            }
        }
        for lease in 0..self.scope.leases {
            let mut send = |change| steps.push(Step::Send(w, Request::Lease(small(lease), change)));
            self.changes(agent, lease, &mut send);
        }
    }

    fn changes(&self, agent: &ModelWorker, lease: usize, send: &mut impl FnMut(Change)) {
        let (by, mind) = (agent.id, &agent.minds[lease]);
        let may_move = |term| term < self.scope.terms;
        match mind.hold {
            // A late take or hand-over may have made this worker the owner, too.
            None => {
                let Some(row) = mind.listed else { return };
                let term = row.term;
                if may_move(term) && self.is_free(agent, row.owner) {
                    send(Change::Take { by, term });
                }
                if self.scope.hand_over && row.owner.is_some_and(|owner| owner != by) {
                    match row.named {
                        None => send(Change::Name { by, term }),
                        Some(taker) if taker == by => send(Change::Withdraw { by, term }),
                        Some(_) => {}
                    }
                }
            }
            // To continue after a hand-over or release that may still arrive, it takes its own row
            // again.
            Some(term) if mind.silent => {
                if may_move(term) {
                    send(Change::Take { by, term });
                }
            }
            Some(term) => {
                if self.scope.release && may_move(term) {
                    send(Change::Release { by, term });
                }
                let asked = mind.listed.filter(|row| row.term == term).and_then(|row| row.named);
                if let Some(to) = asked.filter(|_| self.scope.hand_over && may_move(term)) {
                    send(Change::Pass { by, term, to });
                }
                let from = mind.checkpoint;
                if self.scope.checkpoints && from < END {
                    for to in from + 1..END {
                        send(Change::Checkpoint { by, term, from, to });
                    }
                    send(Change::End { by, term, from });
                }
            }
        }
    }

    fn is_free(&self, agent: &ModelWorker, owner: Option<Id>) -> bool {
        let Some(owner) = owner.filter(|owner| *owner != agent.id) else { return true };
        let owner = usize::from(owner);
        match agent.seen[owner] {
            Seen::Fenced => true,
            Seen::Gone(age) if age >= self.longest() => true,
            Seen::Alive(_, age) if age >= self.patience(agent, owner) => {
                matches!(self.flaw, Flaw::TakesWithoutTheFence | Flaw::TakesFromABeatingOwner)
            }
            _ => self.flaw == Flaw::TakesFromABeatingOwner,
        }
    }

    fn comings_and_goings(
        &self,
        w: usize,
        agent: &ModelWorker,
        world: &World,
        steps: &mut Vec<Step>,
    ) {
        let first_id = agent.id.is_multiple_of(2);
        if agent.joined && first_id {
            steps.push(Step::Stop(w));
            let idle = agent.call == Call::None && agent.beat == BeatInFlight::None;
            if idle && agent.minds.iter().all(|mind| mind.hold.is_none()) {
                let leave = WorkerWrite::Leave(agent.counter);
                steps.push(Step::Send(w, Request::Heart(agent.id, leave)));
            }
        }
        if !agent.joined && self.join(world, agent).is_some() {
            steps.push(Step::Join(w));
        }
        for id in 0..IDS {
            let named = (0..self.scope.leases).any(|l| world.leases[l].owner == Some(small(id)));
            let goes = self.rules.heart(world.hearts[id], small(id), WorkerWrite::Delete).is_some();
            if goes && !named {
                steps.push(Step::DeleteHeart(w, small(id)));
            }
        }
    }

    /// Returns the id of the next join and its worker row.
    pub(crate) fn join(&self, world: &World, agent: &ModelWorker) -> Option<(Id, WorkerRowState)> {
        let id = match (self.flaw, agent.id % 2) {
            (Flaw::JoinsUnderTheOldId, _) => agent.id,
            (_, 0) => agent.id + 1,
            _ => return None,
        };
        Some((id, self.rules.heart(world.hearts[usize::from(id)], id, WorkerWrite::Join)?))
    }
}

/// Updates an observation with a polled worker row: an unchanged counter keeps its age, and any
/// other starts at age 0.
pub(crate) fn sight(before: Seen, heart: WorkerRowState) -> Seen {
    match (before, heart) {
        (Seen::Alive(counter, age), WorkerRowState::Alive(now)) if counter == now => {
            Seen::Alive(counter, age)
        }
        (Seen::Gone(age), WorkerRowState::Absent) => Seen::Gone(age),
        (_, WorkerRowState::Alive(now)) => Seen::Alive(now, 0),
        (_, WorkerRowState::Absent) => Seen::Gone(0),
        (_, WorkerRowState::Fenced(_)) => Seen::Fenced,
    }
}

/// Returns true if the worker has listed a lease of that id.
fn names(agent: &ModelWorker, id: usize) -> bool {
    let owner = Some(small(id));
    agent.minds.iter().any(|mind| mind.listed.is_some_and(|row| row.owner == owner))
}
