//! Effects of the steps on the explored state.

use crate::choices::{Moves, Step, sight};
use crate::flaw::Flaw;
use crate::rules::{Change, END, WorkerRowState, WorkerWrite, resolve_heart};
use crate::world::{Answer, BeatInFlight, Call, ModelWorker, Request, Seen, World};
use anabranch_model::lease::Resolution;

impl Moves<'_> {
    /// Returns the state after a step, or the guarantee that the step broke.
    pub(crate) fn take(&self, mut world: World, step: Step) -> Result<World, String> {
        match step {
            Step::Tick => return Ok(world.after_a_tick(self.longest())),
            Step::Beat(w)
            | Step::BeatArrives(w)
            | Step::BeatReply(w)
            | Step::BeatGivenUp(w)
            | Step::BeatLeftToLandLate(w)
            | Step::BeatReadBack(w)
            | Step::BeatRetry(w)
            | Step::LateBeatLands(w) => self.beat(&mut world, w, step),
            Step::Look(w, id) => {
                let seen = &mut world.agents[w].seen[usize::from(id)];
                *seen = sight(*seen, world.hearts[usize::from(id)]);
            }
            Step::List(w, lease) => {
                world.agents[w].minds[lease].listed = Some(self.listed(world.leases[lease]));
            }
            Step::Send(w, request) => self.send(&mut world.agents[w], request),
            Step::Arrives(w) => {
                let Call::Sent(request) = world.agents[w].call else { return Ok(world) };
                let answer = self.land(&mut world, request)?;
                world.agents[w].call = Call::Answered(request, answer);
            }
            Step::LateLands(w) => {
                if let Some(request) = world.agents[w].late.take() {
                    self.land(&mut world, request)?;
                }
            }
            Step::Reply(w) => {
                let Call::Answered(request, answer) = world.agents[w].call else {
                    return Ok(world);
                };
                world.agents[w].call = Call::None;
                self.hear(&mut world, w, request, answer)?;
            }
            Step::GivenUp(w) | Step::LeftToLandLate(w) => {
                let agent = &mut world.agents[w];
                if let Call::Sent(request) | Call::Answered(request, _) = agent.call {
                    agent.call = Call::Unresolved(request);
                    if step == Step::LeftToLandLate(w) {
                        agent.late = Some(request);
                    }
                }
            }
            Step::ReadBack(w) => self.read_back(&mut world, w)?,
            Step::Abandon(w) => world.agents[w].call = Call::None,
            Step::Stop(w) => world.agents[w].stop(),
            Step::Join(w) => {
                if let Some((id, heart)) = self.join(&world, &world.agents[w]) {
                    world.hearts[usize::from(id)] = heart;
                    let agent = &mut world.agents[w];
                    (agent.id, agent.joined, agent.counter, agent.age) = (id, true, 0, 0);
                }
            }
            Step::DeleteHeart(_, id) => world.hearts[usize::from(id)] = WorkerRowState::Absent,
        }
        Ok(world)
    }

    fn beat(&self, world: &mut World, w: usize, step: Step) {
        let agent = &mut world.agents[w];
        let heart = &mut world.hearts[usize::from(agent.id)];
        let pulse = WorkerWrite::Beat(agent.counter);
        agent.beat = match (step, agent.beat) {
            (Step::Beat(_), _) => BeatInFlight::Sent(0),
            (Step::BeatArrives(_), BeatInFlight::Sent(age)) => {
                let after = self.rules.heart(*heart, agent.id, pulse);
                // A refused retry is judged by the row that came with the refusal.
                let resolved = || resolve_heart(*heart, agent.id, pulse);
                let ok = after.is_some() || resolved() == Resolution::Applied;
                *heart = after.unwrap_or(*heart);
                BeatInFlight::Answered(age, ok)
            }
            (Step::BeatReply(_), BeatInFlight::Answered(age, ok)) => {
                self.hear_beat(agent, age, ok);
                BeatInFlight::None
            }
            (Step::BeatGivenUp(_), BeatInFlight::Sent(age) | BeatInFlight::Answered(age, _)) => {
                BeatInFlight::Unresolved(age)
            }
            (Step::BeatLeftToLandLate(_), BeatInFlight::Sent(age)) => {
                agent.late_beat = Some((agent.id, agent.counter));
                BeatInFlight::Unresolved(age)
            }
            (Step::BeatReadBack(_), BeatInFlight::Unresolved(age)) => {
                match resolve_heart(*heart, agent.id, pulse) {
                    Resolution::Applied => {
                        self.hear_beat(agent, age, true);
                        BeatInFlight::None
                    }
                    Resolution::NotApplied => {
                        self.hear_beat(agent, age, false);
                        BeatInFlight::None
                    }
                    Resolution::StillUnknown => BeatInFlight::Unresolved(age),
                }
            }
            (Step::BeatRetry(_), BeatInFlight::Unresolved(age)) => {
                BeatInFlight::Sent(if self.flaw == Flaw::RetryCountsAnew { 0 } else { age })
            }
            (_, beat) => {
                if let Some((id, counter)) = agent.late_beat.take() {
                    let heart = &mut world.hearts[usize::from(id)];
                    *heart =
                        self.rules.heart(*heart, id, WorkerWrite::Beat(counter)).unwrap_or(*heart);
                }
                beat
            }
        };
    }

    fn hear_beat(&self, agent: &mut ModelWorker, age: u8, ok: bool) {
        if !ok {
            agent.beat = BeatInFlight::None;
            agent.stop();
            return;
        }
        agent.counter += 1;
        if self.in_time(agent) || self.flaw.resumes_after_expiry() {
            agent.age = if self.flaw == Flaw::DeadlineFromTheReply { 0 } else { age };
        }
    }

    fn send(&self, agent: &mut ModelWorker, request: Request) {
        agent.call = Call::Sent(request);
        match request {
            Request::Heart(_, WorkerWrite::Leave(_)) => agent.stop(),
            Request::Lease(lease, Change::Pass { .. }) if self.flaw != Flaw::GoesOnAfterAPass => {
                agent.minds[usize::from(lease)].silent = true;
            }
            Request::Lease(lease, Change::Release { .. })
                if self.flaw != Flaw::GoesOnAfterARelease =>
            {
                agent.minds[usize::from(lease)].silent = true;
            }
            _ => {}
        }
    }

    /// Applies a request to the store, if its condition holds.
    fn land(&self, world: &mut World, request: Request) -> Result<Answer, String> {
        match request {
            Request::Heart(id, pulse) => {
                let heart = &mut world.hearts[usize::from(id)];
                let after = self.rules.heart(*heart, id, pulse);
                *heart = after.unwrap_or(*heart);
                Ok(if after.is_some() { Answer::Heart } else { Answer::Refused })
            }
            Request::Lease(lease, change) => {
                let row = &mut world.leases[usize::from(lease)];
                let Some(after) = self.rules.lease(*row, change) else {
                    // A refused retry is judged by the row that came with the refusal.
                    let resolution = self.rules.resolve_lease(*row, change);
                    let applied = resolution == Resolution::Applied;
                    return Ok(if applied { Answer::Lease(*row) } else { Answer::Refused });
                };
                if let Change::Checkpoint { by, term, .. } | Change::End { by, term, .. } = change
                    && (row.owner, row.term) != (Some(by), term)
                {
                    return Err(format!("lease {lease} took a checkpoint from who had lost it"));
                }
                if after.checkpoint < row.checkpoint {
                    return Err(format!("the checkpoint of lease {lease} went back"));
                }
                *row = after;
                Ok(Answer::Lease(after))
            }
        }
    }

    /// Processes the answer to a worker's request.
    fn hear(
        &self,
        world: &mut World,
        w: usize,
        request: Request,
        answer: Answer,
    ) -> Result<(), String> {
        let agent = &mut world.agents[w];
        let (lease, change) = match request {
            Request::Heart(id, _) => {
                let refused = answer == Answer::Refused;
                agent.seen[usize::from(id)] = if refused { Seen::Never } else { Seen::Fenced };
                return Ok(());
            }
            Request::Lease(lease, change) => (usize::from(lease), change),
        };
        let mind = &mut agent.minds[lease];
        let before = mind.listed.take();
        match (change, answer) {
            (Change::Take { .. }, Answer::Lease(row)) => {
                mind.hold = Some(row.term);
                mind.silent = false;
                mind.checkpoint = row.checkpoint;
                if let Some(before) = before.filter(|_| self.flaw == Flaw::ReadsOnFromTheListedRow)
                {
                    mind.checkpoint = before.checkpoint;
                }
                if mind.checkpoint < world.acked[lease] {
                    return Err(format!("a taker of lease {lease} reads what was done before"));
                }
            }
            (Change::Checkpoint { to, .. }, Answer::Lease(_)) => {
                mind.checkpoint = to;
                world.acked[lease] = world.acked[lease].max(to);
            }
            (Change::End { .. }, Answer::Lease(_)) => {
                mind.checkpoint = END;
                world.acked[lease] = END;
            }
            // Refused, and yet an older copy of the same hand-over may arrive once the taker
            // requests it again: the worker does not deliver under this term.
            (Change::Name { .. } | Change::Withdraw { .. }, _)
            | (Change::Pass { .. }, Answer::Refused) => {}
            _ => (mind.hold, mind.silent) = (None, false),
        }
        Ok(())
    }

    fn read_back(&self, world: &mut World, w: usize) -> Result<(), String> {
        let Call::Unresolved(request) = world.agents[w].call else { return Ok(()) };
        let (resolution, row) = match request {
            Request::Heart(id, pulse) => {
                (resolve_heart(world.hearts[usize::from(id)], id, pulse), None)
            }
            Request::Lease(lease, change) => {
                let row = world.leases[usize::from(lease)];
                (self.rules.resolve_lease(row, change), Some(row))
            }
        };
        world.agents[w].call = Call::None;
        match (resolution, request, row) {
            (Resolution::StillUnknown, _, _) => world.agents[w].call = Call::Sent(request),
            (Resolution::Applied, _, row) => {
                let answer = row.map_or(Answer::Heart, Answer::Lease);
                self.hear(world, w, request, answer)?;
            }
            // Another write of this worker came first: it still owns the row, which shows the
            // position.
            (
                Resolution::NotApplied,
                Request::Lease(
                    lease,
                    Change::Checkpoint { by, term, .. } | Change::End { by, term, .. },
                ),
                Some(row),
            ) if (row.owner, row.term) == (Some(by), term) => {
                let mind = &mut world.agents[w].minds[usize::from(lease)];
                mind.checkpoint = row.checkpoint;
            }
            (Resolution::NotApplied, _, _) => self.hear(world, w, request, Answer::Refused)?,
        }
        Ok(())
    }
}
