//! Debian packages: installed as root, or unpacked from another release into the cache.

use crate::shell::{is_there, output, program};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Keyring that signs every release of Debian.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Installs packages of this release, if running as root on Debian.
pub(crate) fn install(packages: &[&str]) -> Result<(), String> {
    let root_user = output(&mut program("id", &["-u"])).is_ok_and(|id| id.trim() == "0");
    if !root_user || !is_there("apt-get", "--version") {
        return Err("not on this machine, and not root on Debian to install it".to_owned());
    }
    output(&mut program("apt-get", &["update", "-qq"]))?;
    let mut install = program("apt-get", &["install", "-y", "-qq", "--no-install-recommends"]);
    output(install.args(packages).env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}

/// A release of Debian other than the installed one. Packages and all their dependencies, down to
/// the C library, are unpacked into a folder and never installed. Needs no root.
pub(crate) struct OtherRelease<'a> {
    pub(crate) name: &'a str,
    pub(crate) folder: &'a Path,
}

impl OtherRelease<'_> {
    /// Returns a script that runs `file` of `package`, such as `usr/sbin/pgbouncer`.
    pub(crate) fn program(&self, package: &str, file: &str) -> Result<PathBuf, String> {
        let script = self.folder.join(package);
        if !script.exists() {
            self.unpack(package)?;
            self.write_script(&script, file)?;
        }
        Ok(script)
    }

    fn unpack(&self, package: &str) -> Result<(), String> {
        for folder in ["lists/partial", "cache/archives/partial", "root"] {
            let folder = self.folder.join(folder);
            fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        // With an empty package status, all dependencies are downloaded too.
        self.write("status", "")?;
        self.write("sources.list", &self.sources()?)?;
        output(self.apt_get().arg("update"))?;
        let download = ["install", "--download-only", "-y", "--no-install-recommends", package];
        output(self.apt_get().args(download))?;
        let archives = self.folder.join("cache/archives");
        let entries = fs::read_dir(&archives).map_err(|e| e.to_string())?;
        for archive in entries.flatten().map(|entry| entry.path()) {
            if archive.extension().is_some_and(|extension| extension == "deb") {
                let mut unpack = program("dpkg", &["-x"]);
                output(unpack.arg(archive).arg(self.folder.join("root")))?;
            }
        }
        fs::remove_dir_all(&archives).map_err(|e| e.to_string())
    }

    /// Returns the sources list for this release, with the mirror that apt is configured with.
    fn sources(&self) -> Result<String, String> {
        let format = "$(RELEASE) $(REPO_URI)";
        let mut targets = program("apt-get", &["indextargets", "--format", format]);
        let targets = output(targets.arg("Created-By: Packages"))?;
        let mirror = mirror(&targets).ok_or("apt has no mirror of Debian")?;
        let signed = Path::new(KEYRING).exists().then(|| format!("[signed-by={KEYRING}] "));
        Ok(format!("deb {}{mirror} {} main\n", signed.unwrap_or_default(), self.name))
    }

    fn apt_get(&self) -> Command {
        let mut apt = program("apt-get", &["-qq"]);
        for (option, place) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::Etc::sourceparts", "no-parts"),
            ("Dir::State::lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
        ] {
            apt.arg("-o").arg(format!("{option}={}", self.folder.join(place).display()));
        }
        apt
    }

    /// Writes the start script. The program needs the C library of its own release, and that
    /// library's loader.
    fn write_script(&self, script: &Path, file: &str) -> Result<(), String> {
        let root = self.folder.join("root");
        let loader = loader(&root.join("usr/lib")).ok_or("the packages hold no loader")?;
        let libraries = loader.parent().expect("a file lies in a folder").display();
        let text = format!(
            "#!/bin/sh\nexec '{}' --library-path '{libraries}' '{}' \"$@\"\n",
            loader.display(),
            root.join(file).display(),
        );
        let half = script.with_extension("half");
        let write = || {
            fs::write(&half, text)?;
            fs::set_permissions(&half, fs::Permissions::from_mode(0o755))?;
            fs::rename(&half, script)
        };
        write().map_err(|e| format!("{}: {e}", script.display()))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    }
}

/// Returns the mirror of the configured release. Its updates (`NAME-updates`) may use another one.
fn mirror(targets: &str) -> Option<&str> {
    let mut lines = targets.lines().filter_map(|line| line.split_once(' '));
    let is_main = |(release, mirror): &(&str, &str)| {
        !release.contains(['-', '/']) && mirror.ends_with("/debian/")
    };
    lines.find(is_main).map(|(_, mirror)| mirror)
}

/// Returns the loader below `libraries`, in the folder of this machine's architecture.
fn loader(libraries: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(libraries).ok()?.flatten().map(|entry| entry.path());
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    files.map(|entry| entry.path()).find(|file| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("ld-linux") && name.contains(".so.")
    })
}

#[cfg(test)]
mod tests {
    use super::mirror;

    #[test]
    fn the_mirror_is_the_one_that_apt_has_for_the_release_itself() {
        let targets = "stable-security http://a/debian-security/\n\
                       stable-updates http://b/debian/\n\
                       stable http://c/debian/\n";
        assert_eq!(mirror(targets), Some("http://c/debian/"));
        assert_eq!(mirror("other http://c/ubuntu/\n"), None);
    }
}
