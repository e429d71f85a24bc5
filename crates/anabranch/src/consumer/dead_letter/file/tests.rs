//! Tests of dead-letter files: complete lines, key order, crashes and concurrent redrives.

use crate::consumer::dead_letter::file::*;
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use anabranch_model::sequence::SequenceNumber;
use std::sync::Mutex;

fn parked(key: &str, number: u64) -> DeadLetter {
    let record = UserRecord {
        sequence: SequenceNumber::from_limbs(0, 0, number).unwrap(),
        sub: 0,
        aggregated: false,
        partition_key: key.into(),
        explicit_hash_key: None,
        data: number.to_string().into(),
        arrival_ms: 1,
    };
    DeadLetter::new(&LeaseKey::new("s", "shardId-000000000000"), &record, "on purpose")
}

/// Stores these records in a file in `folder` and returns it as a queue.
async fn file(folder: &Path, records: &[(&str, u64)]) -> DeadLetterQueue {
    let file = DeadLetterFile::new(folder.join("parked.jsonl"));
    for (key, number) in records {
        file.store(&parked(key, *number)).await.unwrap();
    }
    file.into()
}

/// Redrives with a handler that fails for some numbers. Returns the numbers that the handler
/// received, and the summary.
async fn redrive(park: &DeadLetterQueue, failing: &[u64]) -> (Vec<u64>, RedriveSummary) {
    let given = Mutex::new(Vec::new());
    let redriven = park.redrive(|record| {
        let number = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
        given.lock().unwrap().push(number);
        let failed = failing.contains(&number);
        std::future::ready(if failed { Err("again") } else { Ok(()) })
    });
    let redriven = redriven.await.unwrap();
    (given.into_inner().unwrap(), redriven)
}

#[tokio::test]
async fn a_key_that_fails_again_stays_parked_from_there_on_and_others_go_on_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let park = file(folder.path(), &[("b", 5), ("a", 3), ("a", 1), ("b", 2), ("a", 4)]).await;
    let (given, redriven) = redrive(&park, &[3]).await;
    assert_eq!(given, [1, 2, 3, 5]);
    assert_eq!((redriven.done, redriven.left, redriven.unreadable), (3, 2, 0));
    assert_eq!(redriven.failures, [(parked("a", 3), "again".to_owned())]);
    let (given, redriven) = redrive(&park, &[]).await;
    assert_eq!((given, redriven.done, redriven.left), (vec![3, 4], 2, 0));
    assert!(redrive(&park, &[]).await.0.is_empty(), "nothing is left");
}

#[tokio::test]
async fn a_redrive_that_was_killed_goes_on_where_it_was_and_takes_the_new_ones_behind() {
    let folder = tempfile::tempdir().unwrap();
    let park = file(folder.path(), &[("a", 1), ("a", 2), ("a", 3)]).await;
    {
        let killed = park.redrive(|record| async move {
            if &*record.data == b"3" {
                std::future::pending::<()>().await;
            }
            Ok::<(), HandlerError>(())
        });
        let hangs = tokio::time::timeout(std::time::Duration::from_millis(300), killed).await;
        assert!(hangs.is_err(), "it hangs at the third");
    }
    // Meanwhile the key continues, and another record of it becomes a dead letter.
    let park = { file(folder.path(), &[("a", 4)]).await };
    let (given, redriven) = redrive(&park, &[]).await;
    assert_eq!((given, redriven.done, redriven.left), (vec![3, 4], 2, 0));
}

#[tokio::test]
async fn a_redrive_with_an_unreadable_list_of_done_records_fails_and_handles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let park = file(folder.path(), &[("a", 1), ("a", 2)]).await;
    let claim = folder.path().join("parked.jsonl.redrive");
    std::fs::rename(folder.path().join("parked.jsonl"), &claim).unwrap();
    // A directory in place of the list: reading it fails, but not because it is missing.
    std::fs::create_dir(folder.path().join("parked.jsonl.redrive.done")).unwrap();
    let calls = Mutex::new(0);
    let redriven = park.redrive(|_| {
        *calls.lock().unwrap() += 1;
        std::future::ready(Ok::<(), HandlerError>(()))
    });
    assert!(matches!(redriven.await, Err(DeadLetterError::File { .. })));
    assert_eq!(*calls.lock().unwrap(), 0, "done records must not be handled again");
    assert!(claim.exists(), "the next redrive resumes it");
}

#[tokio::test]
async fn what_is_parked_again_is_handled_again_though_a_redrive_was_killed_at_its_very_end() {
    let folder = tempfile::tempdir().unwrap();
    // The claim is gone, and its list of done records is still there.
    let list = folder.path().join("parked.jsonl.redrive.done");
    std::fs::write(&list, format!("{}\n", place(&parked("a", 1)))).unwrap();
    let park = file(folder.path(), &[("a", 1), ("a", 2)]).await;
    let (given, redriven) = redrive(&park, &[]).await;
    assert_eq!((given, redriven.done, redriven.left), (vec![1, 2], 2, 0));
    assert!(!list.exists());
}

#[tokio::test]
async fn a_line_that_was_cut_off_swallows_nothing_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("parked.jsonl"), "{\"cut").unwrap();
    let park = file(folder.path(), &[("a", 1)]).await;
    for given in [&[1][..], &[]] {
        let (was_given, redriven) = redrive(&park, &[]).await;
        assert_eq!((was_given.as_slice(), redriven.unreadable), (given, 1));
    }
}

#[tokio::test]
async fn one_redrive_runs_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let park = file(folder.path(), &[("a", 1)]).await;
    let rival = park.clone();
    let refused = park.redrive(|_| async {
        match rival.redrive(|_| std::future::ready(Ok::<(), HandlerError>(()))).await {
            Err(DeadLetterError::Busy { .. }) => Ok(()),
            other => Err(HandlerError::from(format!("{other:?}"))),
        }
    });
    let redriven = refused.await.unwrap();
    assert_eq!((redriven.done, redriven.failures.len()), (1, 0), "{redriven:?}");
}

#[test]
fn the_folder_of_a_bare_file_name_is_the_current_one() {
    assert_eq!(folder_of(Path::new("parked.jsonl")), Path::new("."));
    assert_eq!(folder_of(Path::new("a/parked.jsonl")), Path::new("a"));
    assert_eq!(folder_of(Path::new("/parked.jsonl")), Path::new("/"));
    let folder = tempfile::tempdir().unwrap();
    sync_folder(&folder.path().join("parked.jsonl")).unwrap();
}
