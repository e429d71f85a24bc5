//! A simulated fleet on one table. Every worker polls and plans, and its moves run as conditional
//! writes, one worker after the other.

use crate::lease::fleet_snapshot::{
    FleetSnapshot, LeasePhase, LeaseSnapshot, WorkerSnapshot, WorkerStatus,
};
use crate::lease::fleet_view::FleetView;
use crate::lease::java_shuffle::JavaRandom;
use crate::lease::plan::{LeaseMove, PlanSettings, PlanningWorker, plan};
use crate::lease::row::LeaseKey;
use crate::lease::table::Layout;
use crate::lease::worker_row::WorkerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum time for which a hand-over request waits.
pub(in crate::lease::plan) const PATIENCE: u64 = 5_000;
/// Time between polls.
const LOOK: u64 = 500;
/// Time between the turns of two workers.
const TURN: u64 = 5;
/// Time for which a plan is carried out.
const FRESH: u64 = 200;
/// Rounds in a lease time.
pub(in crate::lease::plan) const LEASE_ROUNDS: usize = 20;
/// Maximum time without a heartbeat.
pub(in crate::lease::plan) const LEASE_TIME: u64 = LOOK * LEASE_ROUNDS as u64;

/// Tally of events in one or more rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::lease::plan) struct RoundTally {
    pub(in crate::lease::plan) fences: usize,
    pub(in crate::lease::plan) takes: usize,
    pub(in crate::lease::plan) names: usize,
    pub(in crate::lease::plan) passes: usize,
    pub(in crate::lease::plan) withdrawals: usize,
    pub(in crate::lease::plan) releases: usize,
    /// Writes whose condition was false.
    pub(in crate::lease::plan) refused: usize,
    /// Planned moves.
    pub(in crate::lease::plan) planned: usize,
}

impl RoundTally {
    pub(in crate::lease::plan) fn add(&mut self, other: RoundTally) {
        self.fences += other.fences;
        self.takes += other.takes;
        self.names += other.names;
        self.passes += other.passes;
        self.withdrawals += other.withdrawals;
        self.releases += other.releases;
        self.refused += other.refused;
        self.planned += other.planned;
    }
}

/// A simulated worker process.
pub(in crate::lease::plan) struct SimulatedProcess {
    view: FleetView,
    running: BTreeSet<LeaseKey>,
    /// Rest of its last plan, when workers act one by one.
    to_do: VecDeque<LeaseMove>,
    /// Time of that plan.
    planned_ms: u64,
    /// Rounds between heartbeats.
    pub(in crate::lease::plan) beat_rounds: u64,
    /// It sends no heartbeats and does nothing.
    pub(in crate::lease::plan) dead: bool,
    /// It sends heartbeats and polls, but carries out no moves.
    pub(in crate::lease::plan) stuck: bool,
}

/// The table and the processes.
pub(in crate::lease::plan) struct SimulatedFleet {
    pub(in crate::lease::plan) now_ms: u64,
    pub(in crate::lease::plan) settings: PlanSettings,
    pub(in crate::lease::plan) workers: BTreeMap<WorkerId, WorkerSnapshot>,
    pub(in crate::lease::plan) leases: BTreeMap<LeaseKey, LeaseSnapshot>,
    pub(in crate::lease::plan) processes: BTreeMap<WorkerId, SimulatedProcess>,
    /// One in this many polls shows the table as it was a round ago.
    pub(in crate::lease::plan) stale_one_in: Option<u32>,
    before: FleetSnapshot,
    random: JavaRandom,
}

pub(in crate::lease::plan) fn worker_id(i: usize) -> WorkerId {
    format!("worker-{i:03}").into()
}

pub(in crate::lease::plan) fn key(i: usize) -> LeaseKey {
    LeaseKey::new("s", format!("shardId-{i:012}"))
}

pub(in crate::lease::plan) fn lease(i: usize, owner: Option<usize>) -> LeaseSnapshot {
    LeaseSnapshot {
        key: key(i),
        owner: owner.map(worker_id),
        counter: 1,
        phase: LeasePhase::Ready,
        requested: None,
        refused: false,
        bytes_per_second: None,
    }
}

impl SimulatedFleet {
    pub(in crate::lease::plan) fn new(settings: PlanSettings, seed: u64) -> Self {
        Self {
            now_ms: 0,
            settings,
            workers: BTreeMap::new(),
            leases: BTreeMap::new(),
            processes: BTreeMap::new(),
            stale_one_in: None,
            before: FleetSnapshot::default(),
            random: JavaRandom::new(seed),
        }
    }

    pub(in crate::lease::plan) fn join(&mut self, i: usize) {
        self.join_for(i, LEASE_TIME);
        self.processes.get_mut(&worker_id(i)).unwrap().beat_rounds = 1;
    }

    /// Adds a worker with a lease time of its own and three heartbeats in it.
    pub(in crate::lease::plan) fn join_for(&mut self, i: usize, lease_time_ms: u64) {
        let id = worker_id(i);
        let row = WorkerSnapshot {
            id: id.clone(),
            counter: 0,
            status: WorkerStatus::Active,
            reads: None,
            lease_time_ms: Some(lease_time_ms),
        };
        self.workers.insert(id.clone(), row);
        let view = FleetView::new(Layout::Native, lease_time_ms, PATIENCE);
        let (running, to_do) = (BTreeSet::new(), VecDeque::new());
        let (dead, stuck, planned_ms) = (false, false, 0);
        let beat_rounds = (lease_time_ms / LOOK / 3).max(1);
        let process =
            SimulatedProcess { view, running, to_do, planned_ms, beat_rounds, dead, stuck };
        self.processes.insert(id, process);
    }

    /// Adds a lease; an owner with a process runs it.
    pub(in crate::lease::plan) fn add(&mut self, lease: LeaseSnapshot) {
        if let Some(process) = lease.owner.as_ref().and_then(|id| self.processes.get_mut(id))
            && lease.phase == LeasePhase::Ready
        {
            process.running.insert(lease.key.clone());
        }
        self.leases.insert(lease.key.clone(), lease);
    }

    pub(in crate::lease::plan) fn leave(&mut self, id: &WorkerId) {
        if let Some(row) = self.workers.get_mut(id) {
            row.status = WorkerStatus::Leaving;
        }
    }

    pub(in crate::lease::plan) fn living(&self) -> Vec<WorkerId> {
        let alive = |id: &&WorkerId| {
            !self.processes[*id].dead
                && self.workers.get(*id).is_some_and(|row| row.status == WorkerStatus::Active)
        };
        self.processes.keys().filter(alive).cloned().collect()
    }

    fn snapshot(&self) -> FleetSnapshot {
        FleetSnapshot {
            workers: self.workers.values().cloned().collect(),
            leases: self.leases.values().cloned().collect(),
        }
    }

    /// Runs one round: every worker sends a heartbeat and polls; then, in random order, every
    /// worker carries out its plan.
    pub(in crate::lease::plan) fn round(&mut self) -> RoundTally {
        self.now_ms += LOOK;
        for (id, process) in &self.processes {
            let beats = !process.dead && (self.now_ms / LOOK).is_multiple_of(process.beat_rounds);
            if let Some(row) = self.workers.get_mut(id).filter(|_| beats) {
                row.counter += u64::from(row.status != WorkerStatus::Fenced);
            }
        }
        let fresh = self.snapshot();
        let mut plans = Vec::new();
        for (id, process) in &mut self.processes {
            if process.dead {
                continue;
            }
            let stale = self.stale_one_in.is_some_and(|n| self.random.below(n) == 0);
            let look = if stale { &self.before } else { &fresh };
            process.view.observe(seen_by(&self.workers, id, look.clone()), self.now_ms);
            let me = PlanningWorker { id, running: &process.running };
            let tie_break = u64::from(self.random.below(1 << 30));
            let moves = plan(&process.view, me, self.now_ms, tie_break, &self.settings);
            if !process.stuck {
                plans.push((id.clone(), moves));
            }
        }
        self.before = fresh;
        self.random.shuffle(&mut plans);
        let mut tally = RoundTally::default();
        for (id, moves) in plans {
            for planned in moves {
                tally.planned += 1;
                self.carry_out(&id, planned, &mut tally);
            }
            self.finish_leaving(&id, &mut tally);
        }
        tally
    }

    /// Lets a random worker act: it carries out up to `most` moves of its plan, or polls and plans
    /// again if none are left. Every poll is therefore of another moment, and a plan ages while the
    /// others act.
    pub(in crate::lease::plan) fn turn(&mut self, most: usize) -> RoundTally {
        self.now_ms += TURN;
        let ids = self.living();
        let at = self.random.below(u32::try_from(ids.len()).unwrap()) as usize;
        let id = &ids[at];
        self.workers.get_mut(id).unwrap().counter += 1;
        let (fresh, tie_break) = (self.snapshot(), u64::from(self.random.below(1 << 30)));
        let process = self.processes.get_mut(id).unwrap();
        // As in the coordinator, a plan is carried out while its poll is fresh.
        if process.to_do.is_empty() || self.now_ms >= process.planned_ms + FRESH {
            process.planned_ms = self.now_ms;
            process.view.observe(seen_by(&self.workers, id, fresh), self.now_ms);
            let me = PlanningWorker { id, running: &process.running };
            process.to_do = plan(&process.view, me, self.now_ms, tie_break, &self.settings).into();
            return RoundTally::default();
        }
        let moves: Vec<_> = process.to_do.drain(..most.min(process.to_do.len())).collect();
        let mut tally = RoundTally { planned: moves.len(), ..RoundTally::default() };
        for planned in moves {
            self.carry_out(id, planned, &mut tally);
        }
        tally
    }

    /// Releases leases that a leaving worker has drained and that are not requested.
    fn finish_leaving(&mut self, id: &WorkerId, tally: &mut RoundTally) {
        let leaving = self.workers.get(id).is_some_and(|row| row.status == WorkerStatus::Leaving);
        if !leaving {
            return;
        }
        let mut owned: Vec<_> =
            self.leases.values_mut().filter(|row| row.owner.as_ref() == Some(id)).collect();
        // A few in each round, as drains end.
        for row in owned.iter_mut().filter(|row| row.requested.is_none()).take(3) {
            row.owner = None;
            row.counter += 1;
            tally.releases += 1;
        }
        if owned.is_empty() {
            self.workers.remove(id);
            self.processes.remove(id);
        }
    }

    fn carry_out(&mut self, me: &WorkerId, planned: LeaseMove, tally: &mut RoundTally) {
        let applied = match &planned {
            LeaseMove::Fence { worker, counter } => {
                let row = self.workers.get_mut(worker).filter(|row| row.counter == *counter);
                let row = row.filter(|row| row.status != WorkerStatus::Fenced);
                tally.fences += usize::from(row.is_some());
                row.map(|row| row.status = WorkerStatus::Fenced).is_some()
            }
            LeaseMove::WithdrawRequest { lease, term, taker } => self.change(
                lease,
                *term,
                |row| row.requested.as_ref() == Some(taker),
                |row| row.requested = None,
            ),
            LeaseMove::RequestHandOver { lease, term } => {
                let open = |row: &LeaseSnapshot| {
                    row.requested.is_none() && !row.refused && row.owner.as_ref() != Some(me)
                };
                self.change(lease, *term, open, |row| row.requested = Some(me.clone()))
            }
            LeaseMove::HandOver { lease, term, to } => {
                let asked = |row: &LeaseSnapshot| {
                    row.owner.as_ref() == Some(me) && row.requested.as_ref() == Some(to)
                };
                self.change(lease, *term, asked, |row| hand_to(row, Some(to)))
            }
            LeaseMove::Release { lease, term } => self.change(
                lease,
                *term,
                |row| row.owner.as_ref() == Some(me),
                |row| hand_to(row, None),
            ),
            LeaseMove::Retake { lease, term } => self.change(
                lease,
                *term,
                |row| row.owner.as_ref() == Some(me),
                |row| hand_to(row, Some(me)),
            ),
            LeaseMove::Take { lease, term } => {
                self.check_may_be_taken(me, lease, *term);
                self.change(lease, *term, |_| true, |row| hand_to(row, Some(me)))
            }
            LeaseMove::Steal { .. } => panic!("the native protocol never steals: {planned:?}"),
        };
        if !applied {
            tally.refused += 1;
            return;
        }
        let running = &mut self.processes.get_mut(me).unwrap().running;
        match planned {
            LeaseMove::Take { lease, .. } => {
                tally.takes += 1;
                running.insert(lease);
            }
            LeaseMove::Retake { lease, .. } => {
                running.insert(lease);
            }
            LeaseMove::HandOver { lease, .. } => {
                tally.passes += 1;
                running.remove(&lease);
            }
            LeaseMove::Release { .. } => tally.releases += 1,
            LeaseMove::RequestHandOver { .. } => tally.names += 1,
            LeaseMove::WithdrawRequest { .. } => tally.withdrawals += 1,
            LeaseMove::Fence { .. } | LeaseMove::Steal { .. } => {}
        }
    }

    /// Checks that the owner of a lease to be taken is not alive. The store would allow the take.
    fn check_may_be_taken(&self, me: &WorkerId, lease: &LeaseKey, term: u64) {
        let row = &self.leases[lease];
        assert_eq!(row.phase, LeasePhase::Ready, "{me} takes {lease}, which can't be read");
        if let Some(owner) = row.owner.as_ref().filter(|_| row.counter == term) {
            let standing = self.workers.get(owner).map(|row| row.status);
            let free = matches!(standing, None | Some(WorkerStatus::Fenced));
            assert!(free, "{me} takes {lease} from {owner}, which was not fenced");
        }
    }

    fn change(
        &mut self,
        lease: &LeaseKey,
        term: u64,
        holds: impl Fn(&LeaseSnapshot) -> bool,
        change: impl Fn(&mut LeaseSnapshot),
    ) -> bool {
        let row = self.leases.get_mut(lease).filter(|row| row.counter == term && holds(row));
        row.map(change).is_some()
    }

    /// Runs rounds, whatever happens in them.
    pub(in crate::lease::plan) fn pass_rounds(&mut self, rounds: usize) -> RoundTally {
        let mut tally = RoundTally::default();
        (0..rounds).for_each(|_| tally.add(self.round()));
        tally
    }

    /// Runs rounds until three in a row planned nothing. Returns their number and the tally.
    pub(in crate::lease::plan) fn settle(&mut self, most_rounds: usize) -> (usize, RoundTally) {
        let mut total = RoundTally::default();
        let mut quiet = 0;
        for round in 1..=most_rounds + 3 {
            let tally = self.round();
            total.add(tally);
            quiet = if tally.planned == 0 { quiet + 1 } else { 0 };
            if quiet == 3 {
                return (round - 3, total);
            }
        }
        panic!("not settled after {most_rounds} rounds: {total:?}, counts {:?}", self.counts());
    }

    /// Returns the number of ready leases of each living worker.
    pub(in crate::lease::plan) fn counts(&self) -> BTreeMap<WorkerId, usize> {
        let mut counts: BTreeMap<_, _> = self.living().into_iter().map(|id| (id, 0)).collect();
        for row in self.leases.values().filter(|row| row.phase == LeasePhase::Ready) {
            if let Some(count) = row.owner.as_ref().and_then(|owner| counts.get_mut(owner)) {
                *count += 1;
            }
        }
        counts
    }

    /// Returns the minimum number of leases that have to change hands between living workers for a
    /// level fleet, by trying which workers keep the remainder.
    pub(in crate::lease::plan) fn fewest_passes(&self) -> usize {
        let mut counts: Vec<usize> = self.counts().into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let total = self.leases.values().filter(|row| row.phase == LeasePhase::Ready).count();
        let (level, remainder) = (total / counts.len(), total % counts.len());
        let above =
            |(i, count): (usize, &usize)| count.saturating_sub(level + usize::from(i < remainder));
        counts.iter().enumerate().map(above).sum()
    }

    /// Checks that every ready lease has a living owner that runs it, and that the counts are
    /// level.
    pub(in crate::lease::plan) fn check_level(&self) {
        let counts = self.counts();
        for row in self.leases.values().filter(|row| row.phase == LeasePhase::Ready) {
            let owner = row.owner.as_ref().filter(|owner| counts.contains_key(*owner));
            let owner = owner.unwrap_or_else(|| panic!("{row:?} has no living owner"));
            assert!(
                self.processes[owner].running.contains(&row.key),
                "{owner} doesn't run {row:?}"
            );
            assert_eq!(row.requested, None, "{row:?}");
        }
        let (min, max) = (counts.values().min(), counts.values().max());
        assert!(max.unwrap() - min.unwrap() <= 1, "not level: {counts:?}");
    }
}

/// Filters a poll by the streams that a worker reads.
fn seen_by(
    workers: &BTreeMap<WorkerId, WorkerSnapshot>,
    id: &WorkerId,
    mut look: FleetSnapshot,
) -> FleetSnapshot {
    if let Some(me) = workers.get(id) {
        look.leases.retain(|lease| me.reads(&lease.key.stream));
    }
    look
}

fn hand_to(row: &mut LeaseSnapshot, owner: Option<&WorkerId>) {
    row.owner = owner.cloned();
    row.counter += 1;
    row.requested = None;
}
