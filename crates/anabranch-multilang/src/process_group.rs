//! The processes that a child started: its process group, killed with it.

/// Kills every process of the group that `leader` made, by a call of the system: small images have
/// no `kill` program. The leader may be gone by now.
///
/// The number of a group is not given out again while one of it lives.
pub fn kill_group(leader: u32) {
    // Of an unknown process it would be our own group; `from_raw` refuses that.
    #[cfg(unix)]
    if let Some(group) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
        // It can fail only where nobody is left.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = leader;
}
