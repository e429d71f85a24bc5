//! Process group of a child, which is killed together with it.

/// Kills every process of the group that `leader` created, even if the leader is gone. It uses a
/// system call, because small images have no `kill` program.
///
/// The system does not reuse a group id while one of its processes lives.
pub fn kill_group(leader: u32) {
    // Group 0 would be the daemon's own; `from_raw` rejects it.
    #[cfg(unix)]
    if let Some(group) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
        // This fails only if no process is left.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = leader;
}
