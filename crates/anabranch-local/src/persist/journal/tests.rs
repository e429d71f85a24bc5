//! Tests of the journal's guarantees, on real files.

use super::{DEFAULT_FILE_BYTES, FirstFile, JournalFiles, JournalOptions};
use crate::persist::error::{AppendError, OpenError};
use crate::persist::replay::{CutTail, ReplayedContent};
use crate::persist::sync::Fsync;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

const OPTIONS: JournalOptions =
    JournalOptions { fsync: Fsync::Never, file_bytes: DEFAULT_FILE_BYTES, trouble: |_| () };
const FIRST: FirstFile<'_> = FirstFile { salt: 99, snapshot: b"first" };

/// The content of a reopened journal: its entries as text, and the tail that was cut off.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    entries: Vec<String>,
    cut: Option<CutTail>,
}

fn open_with(
    folder: &Path,
    options: JournalOptions,
    first: FirstFile<'_>,
) -> Result<(JournalFiles, Found), OpenError> {
    let mut entries = Vec::new();
    let opened = JournalFiles::open(folder, options, first, &mut |entry| {
        let (mark, payload) = match entry.content {
            ReplayedContent::Start(payload) => ("^", payload),
            ReplayedContent::Snapshot(payload) => ("|", payload),
            ReplayedContent::Appended(payload) => ("", payload),
        };
        entries.push(format!("{mark}{}", String::from_utf8_lossy(payload)));
        Ok(())
    })?;
    Ok((opened.journal, Found { entries, cut: opened.cut }))
}

fn open(folder: &Path) -> Result<(JournalFiles, Found), OpenError> {
    open_with(folder, OPTIONS, FIRST)
}

fn append(journal: &JournalFiles, payload: &[u8]) -> Result<(), AppendError> {
    journal.append(|out| out.extend_from_slice(payload)).map(drop)
}

fn file(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("journal-{number:010}.log"))
}

/// Creates three files: `^first a bb | s2 ccc dddd | s3 eeeee f`. They are written once and copied
/// afterwards, because writing them syncs.
fn three_files() -> TempDir {
    static FILES: OnceLock<[Vec<u8>; 3]> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let (journal, _) = open(dir.path()).unwrap();
        for text in &THREE_FILES[1..] {
            match text.strip_prefix('|') {
                Some(snapshot) => journal.rotate(snapshot.as_bytes()).unwrap(),
                None => append(&journal, text.as_bytes()).unwrap(),
            }
        }
        [1, 2, 3].map(|number| fs::read(file(dir.path(), number)).unwrap())
    });
    let dir = TempDir::new().unwrap();
    for (number, bytes) in (1..).zip(files) {
        fs::write(file(dir.path(), number), bytes).unwrap();
    }
    dir
}

const THREE_FILES: [&str; 9] = ["^first", "a", "bb", "|s2", "ccc", "dddd", "|s3", "eeeee", "f"];

#[test]
fn entries_come_back_in_order_over_files_and_openings() {
    let dir = three_files();
    let (journal, found) = open(dir.path()).unwrap();
    assert_eq!(found, Found { entries: THREE_FILES.map(str::to_owned).to_vec(), cut: None });
    append(&journal, b"later").unwrap();
    drop(journal);
    let (_journal, found) = open(dir.path()).unwrap();
    assert_eq!(found.entries[THREE_FILES.len()..], ["later"]);
}

#[test]
fn a_new_folder_has_no_entries_and_keeps_its_first_snapshot() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("deep/er");
    assert_eq!(open(&folder).unwrap().1.entries, [""; 0]);
    assert_eq!(open(&folder).unwrap().1.entries, ["^first"]);
}

#[test]
fn a_cut_at_any_byte_of_the_last_file_loses_only_what_was_cut() {
    let whole = three_files();
    let length = fs::read(file(whole.path(), 3)).unwrap().len();
    // Header and snapshot appear together by a rename, so they are never torn.
    let head = 40 + 17 + 2;
    let ends = [head, head + 17 + 5, head + 17 + 5 + 17 + 1];
    assert_eq!(ends[2], length);
    for cut_to in 0..length {
        let dir = three_files();
        let last = fs::File::options().write(true).open(file(dir.path(), 3)).unwrap();
        last.set_len(cut_to as u64).unwrap();
        let found = open(dir.path());
        if cut_to < head {
            let problem = found.expect_err("a snapshot is missing").to_string();
            assert!(problem.contains("journal-0000000003.log"), "{cut_to}: {problem}");
            continue;
        }
        let (journal, found) = found.unwrap();
        let kept = ends.iter().rposition(|end| *end <= cut_to).unwrap();
        assert_eq!(found.entries, THREE_FILES[..7 + kept], "cut to {cut_to}");
        let torn = cut_to - ends[kept];
        let cut = (torn > 0).then(|| CutTail {
            path: file(dir.path(), 3),
            offset: ends[kept] as u64,
            bytes: torn as u64,
        });
        assert_eq!(found.cut, cut, "cut to {cut_to}");
        append(&journal, b"more").unwrap();
        drop(journal);
        let (_journal, found) = open(dir.path()).unwrap();
        assert_eq!((found.entries.last().map(String::as_str), found.cut), (Some("more"), None));
    }
}

#[test]
fn a_cut_in_an_earlier_file_is_refused_by_name() {
    for number in [1, 2] {
        let length = fs::read(file(three_files().path(), number)).unwrap().len();
        for cut_to in 0..length {
            let dir = three_files();
            let path = file(dir.path(), number);
            let earlier = fs::File::options().write(true).open(&path).unwrap();
            earlier.set_len(cut_to as u64).unwrap();
            match open(dir.path()) {
                // The seal at the end is not an entry, so losing it loses nothing.
                Ok((_, found)) => {
                    assert_eq!(
                        (found.entries, cut_to),
                        (THREE_FILES.map(str::to_owned).to_vec(), length - 17)
                    );
                }
                Err(problem) => {
                    assert!(problem.to_string().contains(path.to_str().unwrap()), "{problem}");
                }
            }
        }
    }
}

#[test]
fn a_flipped_bit_gives_the_same_entries_or_a_named_error_or_a_cut_tail() {
    for number in [1, 2, 3] {
        let bits = fs::read(file(three_files().path(), number)).unwrap().len() * 8;
        for bit in 0..bits {
            let dir = three_files();
            let path = file(dir.path(), number);
            let mut bytes = fs::read(&path).unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            match open(dir.path()) {
                Ok((_, Found { entries, cut: Some(cut) })) => {
                    assert_eq!(
                        (number, entries),
                        (3, THREE_FILES[..8].iter().map(|e| (*e).to_owned()).collect())
                    );
                    assert_eq!(cut.offset + cut.bytes, bytes.len() as u64);
                }
                Ok((_, found)) => panic!("bit {bit} of file {number} went unnoticed: {found:?}"),
                Err(
                    OpenError::Damaged { path: named, .. }
                    | OpenError::NotAJournal { path: named, .. },
                ) => {
                    assert_eq!(named, path);
                    assert_eq!(fs::read(&path).unwrap(), bytes, "a refused file is left alone");
                }
                Err(problem) => panic!("bit {bit} of file {number}: {problem}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Overwrites random bytes, also in several places: the recovered entries are always a prefix.
    #[test]
    fn damage_never_makes_wrong_entries(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..12),
        rotate_after in 0usize..12,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_last: bool,
    ) {
        let dir = TempDir::new().unwrap();
        let mut written = vec!["^first".to_owned()];
        {
            let (journal, _) = open(dir.path()).unwrap();
            for (i, payload) in payloads.iter().enumerate() {
                append(&journal, payload).unwrap();
                written.push(String::from_utf8_lossy(payload).into_owned());
                if i == rotate_after {
                    journal.rotate(b"state").unwrap();
                    written.push("|state".to_owned());
                }
            }
        }
        let rotated = file(dir.path(), 2).exists();
        let path = file(dir.path(), if rotated && in_last { 2 } else { 1 });
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fs::write(&path, &bytes).unwrap();
        match open(dir.path()) {
            Ok((_, found)) => {
                let lost = written.len() - found.entries.len();
                prop_assert_eq!(&found.entries[..], &written[..written.len() - lost]);
                prop_assert!(lost == 0 || found.cut.is_some());
            }
            Err(problem) => prop_assert!(problem.to_string().contains(path.to_str().unwrap())),
        }
    }
}

#[test]
fn missing_files_are_named() {
    for number in [1, 2, 3] {
        let dir = three_files();
        let path = file(dir.path(), number);
        fs::remove_file(&path).unwrap();
        match open(dir.path()) {
            Err(OpenError::Missing { path: named }) => assert_eq!(named, path),
            other => panic!("without file {number}: {other:?}"),
        }
    }
}

#[test]
fn a_length_of_four_gigabytes_allocates_nothing() {
    let dir = three_files();
    let path = file(dir.path(), 3);
    let mut bytes = fs::read(&path).unwrap();
    let last_frame = bytes.len() - 18;
    bytes[last_frame..last_frame + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    assert_eq!(open(dir.path()).unwrap().1.cut.unwrap().offset, last_frame as u64);
}

#[test]
fn a_tail_of_zeros_is_torn_and_journal_bytes_inside_a_record_are_not_a_frame() {
    let other = three_files();
    // A journal of another folder, with the numbers that would follow here.
    let elsewhere = TempDir::new().unwrap();
    {
        let (journal, _) =
            open_with(elsewhere.path(), OPTIONS, FirstFile { salt: 5, ..FIRST }).unwrap();
        for _ in 0..20 {
            append(&journal, b"not ours").unwrap();
        }
    }
    let length = fs::read(file(other.path(), 3)).unwrap().len() as u64;
    for tail in [vec![0; 5_000], fs::read(file(elsewhere.path(), 1)).unwrap()] {
        let dir = three_files();
        let mut bytes = fs::read(file(dir.path(), 3)).unwrap();
        bytes.extend_from_slice(&tail);
        fs::write(file(dir.path(), 3), bytes).unwrap();
        let (_journal, found) = open(dir.path()).unwrap();
        assert_eq!(found.entries, THREE_FILES);
        let cut = found.cut.unwrap();
        assert_eq!((cut.offset, cut.bytes), (length, tail.len() as u64));
    }
}

#[test]
fn a_wrong_byte_in_the_last_entry_is_damage_and_not_a_torn_tail() {
    let dir = three_files();
    let path = file(dir.path(), 3);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let problem = open(dir.path()).map(drop).expect_err("an entry that was whole once is damaged");
    assert!(matches!(&problem, OpenError::Damaged { path: named, .. } if *named == path));
    assert_eq!(fs::read(&path).unwrap(), bytes, "a refused file is left alone");
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let dir = TempDir::new().unwrap();
    let (journal, _) = open(dir.path()).unwrap();
    let problem = open(dir.path()).expect_err("the folder is in use");
    assert!(matches!(problem, OpenError::InUse { .. }));
    assert!(problem.to_string().contains(dir.path().to_str().unwrap()), "{problem}");
    drop(journal);
    open(dir.path()).unwrap();
}

#[test]
fn dropped_files_are_gone_and_replay_starts_at_the_oldest_kept() {
    let dir = three_files();
    {
        let (journal, _) = open(dir.path()).unwrap();
        journal.drop_below(2).unwrap();
        journal.drop_below(1).unwrap();
    }
    assert!(!file(dir.path(), 1).exists() && file(dir.path(), 2).exists());
    let (journal, found) = open(dir.path()).unwrap();
    assert_eq!(found.entries, ["^s2", "ccc", "dddd", "|s3", "eeeee", "f"]);
    journal.drop_below(u64::MAX).unwrap();
    drop(journal);
    let (journal, found) = open(dir.path()).unwrap();
    assert_eq!(found.entries, ["^s3", "eeeee", "f"]);
    journal.rotate(b"s4").unwrap();
    drop(journal);
    fs::remove_file(file(dir.path(), 3)).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::Missing { .. })));
}

#[test]
fn a_deletion_that_a_crash_interrupted_is_finished() {
    let dir = three_files();
    let saved = fs::read(file(dir.path(), 1)).unwrap();
    open(dir.path()).unwrap().0.drop_below(2).unwrap();
    fs::write(file(dir.path(), 1), saved).unwrap();
    open(dir.path()).unwrap();
    assert!(!file(dir.path(), 1).exists());
}

#[test]
fn compacting_keeps_the_chosen_entries_and_every_crash_in_it_reads_the_same() {
    let compact = |dir: &TempDir| {
        let (journal, _) = open(dir.path()).unwrap();
        journal.compact_below(3, &|entry| matches!(entry, b"bb" | b"ccc"), &mut |_| ()).unwrap();
        append(&journal, b"later").unwrap();
    };
    let compacted = ["^s3", "bb", "ccc", "|s3", "eeeee", "f", "later"];
    let dir = three_files();
    compact(&dir);
    assert!(!file(dir.path(), 1).exists());
    assert_eq!(
        open(dir.path()).unwrap().1,
        Found { entries: compacted.map(str::to_owned).to_vec(), cut: None }
    );
    // A crash before the older files were deleted.
    let saved = three_files();
    fs::copy(file(saved.path(), 1), file(dir.path(), 1)).unwrap();
    assert_eq!(open(dir.path()).unwrap().1.entries, compacted);
    assert!(!file(dir.path(), 1).exists());
    // A crash before the new file got its name.
    let dir = three_files();
    fs::write(dir.path().join("journal.new"), b"half").unwrap();
    assert_eq!(open(dir.path()).unwrap().1.entries, THREE_FILES);
    // The result is an ordinary journal: it can be compacted, dropped and damaged.
    let dir = three_files();
    compact(&dir);
    {
        let (journal, _) = open(dir.path()).unwrap();
        journal.compact_below(3, &|entry| entry == b"ccc", &mut |_| ()).unwrap();
    }
    assert_eq!(open(dir.path()).unwrap().1.entries[..3], ["^s3", "ccc", "|s3"]);
    let path = file(dir.path(), 2);
    let bytes = fs::read(&path).unwrap();
    for cut_to in 0..bytes.len() - 17 {
        fs::write(&path, &bytes[..cut_to]).unwrap();
        let problem = open(dir.path()).expect_err("an entry is missing").to_string();
        assert!(problem.contains(path.to_str().unwrap()), "{problem}");
    }
    fs::write(&path, &bytes).unwrap();
    open(dir.path()).unwrap().0.drop_below(3).unwrap();
    assert_eq!(open(dir.path()).unwrap().1.entries, ["^s3", "eeeee", "f", "later"]);
}

#[test]
fn an_entry_that_the_engine_refuses_is_named() {
    let dir = three_files();
    let problem =
        JournalFiles::open(dir.path(), OPTIONS, FIRST, &mut |entry| match entry.content {
            ReplayedContent::Appended(b"bb") => Err("no such stream".to_owned()),
            _ => Ok(()),
        })
        .expect_err("an entry is refused")
        .to_string();
    assert!(problem.contains("journal-0000000001.log") && problem.contains("no such stream"));
    assert!(problem.contains("byte 80"), "{problem}");
}

#[test]
fn many_waiters_share_a_sync() {
    const WAITERS: usize = 64;
    const ROUNDS: usize = 20;
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { fsync: Fsync::Always, ..OPTIONS };
    let (journal, _) = open_with(dir.path(), options, FIRST).unwrap();
    let journal = Arc::new(journal);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let mut waiters = tokio::task::JoinSet::new();
        for waiter in 0..WAITERS {
            let journal = Arc::clone(&journal);
            waiters.spawn(async move {
                for round in 0..ROUNDS {
                    append(&journal, format!("{waiter} {round}").as_bytes()).unwrap();
                    journal.durable(journal.last()).await.unwrap();
                }
            });
        }
        waiters.join_all().await;
    });
    let (syncs, appends) = (journal.syncs(), (WAITERS * ROUNDS) as u64);
    assert!(syncs > 0 && syncs * 4 <= appends, "{syncs} syncs for {appends} appends");
    drop(journal);
    let (_journal, found) = open(dir.path()).unwrap();
    for waiter in 0..WAITERS {
        let mark = format!("{waiter} ");
        let own: Vec<_> = found.entries.iter().filter(|e| e.starts_with(&mark)).collect();
        assert!((0..ROUNDS).map(|round| format!("{waiter} {round}")).eq(own.into_iter().cloned()));
    }
}

#[test]
fn an_interval_syncs_without_being_asked() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { fsync: Fsync::Interval(5), ..OPTIONS };
    let (journal, _) = open_with(dir.path(), options, FIRST).unwrap();
    append(&journal, b"x").unwrap();
    for _ in 0..2_000 {
        if journal.syncs() > 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("no sync in ten seconds");
}

/// Runs in a child process with a limit on the size of its files, which acts like a full disk.
#[test]
fn a_full_disk_is_an_error_and_the_journal_stays_readable() {
    const FOLDER: &str = "JOURNAL_OF_A_FULL_DISK";
    let Some(folder) = std::env::var_os(FOLDER) else {
        let dir = TempDir::new().unwrap();
        let name =
            "persist::journal::tests::a_full_disk_is_an_error_and_the_journal_stays_readable";
        // The limit raises a signal that would end the process. With the signal ignored, the write
        // fails.
        let status = std::process::Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" --exact \"$1\" --nocapture"])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(FOLDER, dir.path())
            .output()
            .unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
        let (_journal, found) = open(dir.path()).unwrap();
        assert_eq!(found.cut, None);
        assert!(found.entries.len() > 5 && found.entries.last().unwrap() == "small");
        assert!(found.entries[1..].iter().all(|e| e == "small" || e.len() == 1_000));
        return;
    };
    let (journal, _) = open(Path::new(&folder)).unwrap();
    let mut refused = 0;
    for _ in 0..40 {
        match append(&journal, &[b'x'; 1_000]) {
            Ok(()) => assert_eq!(refused, 0, "a thousand bytes fit again"),
            Err(AppendError::Write(_)) => refused += 1,
            Err(problem) => panic!("{problem}"),
        }
    }
    assert!(refused > 0, "the limit was not reached");
    append(&journal, b"small").unwrap();
}
