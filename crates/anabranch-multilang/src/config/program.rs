//! Check that the program of `executableName` exists where the operating system looks for it.

use std::ffi::OsStr;
use std::path::Path;

/// Returns the reason that the program can't be started, if any. `path` is the value of `PATH`.
pub(super) fn trouble(command: &[String], path: Option<&OsStr>) -> Option<String> {
    let program = command.first()?;
    if program.contains('/') {
        return match kind(Path::new(program)) {
            Kind::Program => None,
            Kind::File => Some(format!(
                "executableName: {program} is not executable: make it executable, or name its \
                 interpreter"
            )),
            Kind::Nothing => Some(format!("executableName: there is no program {program}")),
        };
    }
    let folders = std::env::split_paths(path.unwrap_or_default());
    if folders.into_iter().any(|folder| kind(&folder.join(program)) == Kind::Program) {
        return None;
    }
    let here = match kind(Path::new(program)) {
        Kind::Program => format!("; use ./{program} for the one in this folder"),
        Kind::File => {
            format!("; for the one in this folder, name its interpreter: python3 {program}")
        }
        Kind::Nothing => String::new(),
    };
    Some(format!("executableName: {program} is not in PATH{here}"))
}

#[derive(PartialEq, Eq)]
enum Kind {
    Program,
    File,
    Nothing,
}

#[cfg(unix)]
fn kind(path: &Path) -> Kind {
    use std::os::unix::fs::PermissionsExt;
    match path.metadata() {
        Ok(found) if !found.is_file() => Kind::Nothing,
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Kind::File,
        Ok(_) => Kind::Program,
        Err(_) => Kind::Nothing,
    }
}

#[cfg(not(unix))]
fn kind(path: &Path) -> Kind {
    if path.is_file() { Kind::Program } else { Kind::Nothing }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_that_can_not_be_started_is_named_before_it_is() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        for (name, mode) in [("worker", 0o755), ("app.py", 0o644)] {
            let file = folder.path().join(name);
            std::fs::write(&file, "").expect("it can be written");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, mode).expect("it is ours");
        }
        std::fs::create_dir(folder.path().join("folder")).expect("it can be made");
        let check = |executable: &str, expected: Option<&str>| {
            let executable = executable.replace("HERE", &folder.path().display().to_string());
            let command = crate::child::ChildSettings::words(&executable);
            let said = trouble(&command, Some(folder.path().as_os_str()));
            let held = match (&said, expected) {
                (None, None) => true,
                (Some(said), Some(expected)) => said.contains(expected),
                _ => false,
            };
            assert!(held, "{executable}: {said:?}, not {expected:?}");
        };
        check("worker --flag", None);
        check("HERE/worker", None);
        check("app.py", Some("app.py is not in PATH"));
        check("HERE/app.py", Some("is not executable"));
        check("HERE/none", Some("there is no program"));
        check("HERE/folder", Some("there is no program"));
        check("none", Some("none is not in PATH"));
        assert_eq!(
            trouble(&["Cargo.toml".to_owned()], None).as_deref(),
            Some(
                "executableName: Cargo.toml is not in PATH; for the one in this folder, name its \
                 interpreter: python3 Cargo.toml"
            )
        );
    }
}
