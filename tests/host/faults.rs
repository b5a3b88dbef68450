//! Faults that were found in use, each by the id that `CASES.md` gives it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use wgpu_paged_attention::blocks::{CacheManager, Domain, ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::{ManagerError, TableError};
use wgpu_paged_attention::host::AtomicFile;
use wgpu_paged_attention::plan::{Append, RawTables, Schedule, StepPlan, Tables};

/// A manager with a prefix cache over blocks of 16, and a plan.
fn caching(num_blocks: u32) -> (CacheManager, StepPlan) {
    let layout = CacheConfig::new(1, 1, 8).with_num_blocks(num_blocks).with_max_seq_len(160).layout().unwrap();
    let options = ManagerOptions::default().with_prefix_cache(true).with_events(true);
    (CacheManager::with_options(&layout, &options).unwrap(), StepPlan::new(Schedule::default()))
}

fn text(len: u32) -> Vec<u32> {
    (0..len).map(|token| 7 * token).collect()
}

fn found(manager: &CacheManager, tokens: &[u32]) -> u32 {
    let mut tokens = tokens.to_vec();
    // One token at least is left to compute.
    tokens.push(u32::MAX);
    let found = manager.cached_tokens(&tokens, &Domain::default());
    manager.check_invariants().unwrap();
    found
}

fn grow(manager: &mut CacheManager, plan: &mut StepPlan, seq: SeqId, tokens: &[u32]) {
    manager.step_tokens(&[(seq, tokens)], plan).unwrap().commit();
}

/// Tells the ids of all tokens that lack them.
fn tell(manager: &mut CacheManager, seq: SeqId, ids: &[u32]) -> Result<(), ManagerError> {
    let late = manager.take_late_tokens(seq).unwrap();
    manager.add_token_ids(late, ids)
}

#[test]
fn x06_rejected_drafts_cannot_be_found() {
    for (prompt, drafts, accepted) in [(14, 4, 1), (10, 40, 3), (16, 16, 0), (30, 2, 1)] {
        let (mut manager, mut plan) = caching(8);
        let seq = manager.create_sequence().unwrap();
        let drafted = text(prompt + drafts);
        grow(&mut manager, &mut plan, seq, &drafted);
        assert_eq!(found(&manager, &drafted), (prompt + drafts) / 16 * 16);
        manager.truncate(seq, prompt + accepted).unwrap();
        assert_eq!(found(&manager, &drafted), (prompt + accepted) / 16 * 16);
        // Nothing finds the block any more, so it is written in place.
        grow(&mut manager, &mut plan, seq, &[1; 30]);
        assert_eq!((plan.copies().len(), manager.stats().evictions), (0, 0));
        let real = [&drafted[..(prompt + accepted) as usize], &[1; 30]].concat();
        assert_eq!(found(&manager, &real), real.len() as u32 / 16 * 16);
        manager.release(seq).unwrap();
        assert_eq!(found(&manager, &drafted), (prompt + accepted) / 16 * 16);
    }
}

#[test]
fn x06_what_others_have_or_what_was_found_stays() {
    let (mut manager, mut plan) = caching(8);
    let (seq, tokens) = (manager.create_sequence().unwrap(), text(48));
    grow(&mut manager, &mut plan, seq, &tokens);
    let fork = manager.fork(seq).unwrap();
    manager.truncate(seq, 20).unwrap();
    assert_eq!(found(&manager, &tokens), 48);
    // The last owner that cuts it off takes it along.
    manager.truncate(fork, 20).unwrap();
    assert_eq!(found(&manager, &tokens), 16);
    grow(&mut manager, &mut plan, fork, &tokens[20..]);
    manager.release(fork).unwrap();
    manager.release(seq).unwrap();

    // A drafting head wants the last block that was found computed anew.
    let (again, cached) =
        manager.create_sequence_with_tokens(&[tokens.clone(), vec![0]].concat(), &Domain::default()).unwrap();
    assert_eq!(cached, 48);
    manager.truncate(again, 32).unwrap();
    assert_eq!(found(&manager, &tokens), 48);
}

#[test]
fn x06_what_a_longer_text_rests_on_stays_although_its_window_has_left_it() {
    let config = CacheConfig::new(1, 1, 8).with_block_size(16).with_num_blocks(16).with_max_seq_len(128);
    let layout = config.with_window(48).layout().unwrap();
    let options = ManagerOptions::default().with_prefix_cache(true);
    let mut manager = CacheManager::with_options(&layout, &options).unwrap();
    let (mut plan, tokens) = (StepPlan::new(Schedule::default()), text(32));
    let first = manager.create_sequence().unwrap();
    manager.step(&[(first, 32)], &mut plan).unwrap().commit();
    let fork = manager.fork(first).unwrap();
    tell(&mut manager, first, &tokens).unwrap();
    let longer = manager.fork(first).unwrap();
    manager.step(&[(longer, 32)], &mut plan).unwrap().commit();
    manager.truncate(first, 8).unwrap();
    tell(&mut manager, fork, &tokens).unwrap();
    manager.check_invariants().unwrap();
    assert_eq!(found(&manager, &tokens), 32);
}

#[test]
fn x06_a_block_that_is_cut_off_during_a_step_stays_lost_when_the_step_is_rolled_back() {
    let (mut manager, mut plan) = caching(4);
    let (a, tokens) = (manager.create_sequence().unwrap(), text(32));
    grow(&mut manager, &mut plan, a, &tokens);
    // Blocks 2 and 3 hold another text and are free.
    let b = manager.create_sequence().unwrap();
    grow(&mut manager, &mut plan, b, &[1; 32]);
    manager.release(b).unwrap();
    let c = manager.create_sequence().unwrap();
    let step = manager.step(&[(c, 20)], &mut plan).unwrap();
    step.rollback();
    manager.reserve(&[(c, 20)], &mut plan).unwrap();
    assert_eq!(found(&manager, &[1; 32]), 0);
    manager.truncate(a, 20).unwrap();
    assert_eq!(found(&manager, &tokens), 16);
    manager.rollback(&mut plan).unwrap();
    assert_eq!((found(&manager, &tokens), found(&manager, &[1; 32])), (16, 32));
}

#[test]
fn x06_ids_can_be_told_after_the_commit() {
    let (mut manager, mut plan) = caching(8);
    let (seq, tokens) = (manager.create_sequence().unwrap(), text(40));
    grow(&mut manager, &mut plan, seq, &tokens[..14]);
    manager.step(&[(seq, 5)], &mut plan).unwrap().commit();
    // Three of the drafts are accepted.
    manager.truncate(seq, 17).unwrap();
    assert_eq!(found(&manager, &tokens), 0);
    // The next step is planned, and its token is not known either.
    manager.reserve(&[(seq, 1)], &mut plan).unwrap();
    tell(&mut manager, seq, &tokens[14..17]).unwrap();
    assert_eq!(found(&manager, &tokens), 16);
    manager.commit(&mut plan).unwrap();
    let late = manager.take_late_tokens(seq).unwrap();
    let error = ManagerError::TokenIdCount { seq, given: 2, expected: 1 };
    assert_eq!(manager.add_token_ids(late, &tokens[17..19]), Err(error));
    assert_eq!(error.to_string(), "2 token ids were given for 1 tokens of sequence 0.0; give one for each");
    manager.add_token_ids(late, &tokens[17..18]).unwrap();
    // Ids that come with a step go on from there.
    grow(&mut manager, &mut plan, seq, &tokens[18..32]);
    assert_eq!(found(&manager, &tokens), 32);
}

#[test]
fn x06_shared_tokens_have_one_id() {
    let (mut manager, mut plan) = caching(8);
    let (seq, tokens) = (manager.create_sequence().unwrap(), text(16));
    manager.step(&[(seq, 16)], &mut plan).unwrap().commit();
    let fork = manager.fork(seq).unwrap();
    tell(&mut manager, seq, &tokens).unwrap();
    let mut other = tokens.clone();
    other[3] = 5;
    let error = ManagerError::OtherTokenId { seq: fork, position: 3, given: 5, cached: 21 };
    let late = manager.take_late_tokens(fork).unwrap();
    assert_eq!(manager.add_token_ids(late, &other), Err(error));
    assert_eq!(manager.add_token_ids(late, &tokens), Ok(()));
    assert_eq!(found(&manager, &tokens), 16);
}

#[test]
fn x14_every_copy_of_a_plan_knows_that_its_step_is_closed() {
    let (mut manager, mut plan) = caching(8);
    assert_eq!(plan.is_step_open(), None);
    let seq = manager.create_sequence().unwrap();
    for close in [
        |manager: &mut CacheManager, plan: &mut StepPlan| manager.commit(plan).unwrap(),
        |manager: &mut CacheManager, plan: &mut StepPlan| manager.rollback(plan).unwrap(),
        |manager: &mut CacheManager, _: &mut StepPlan| assert!(manager.abandon()),
    ] {
        manager.reserve(&[(seq, 3)], &mut plan).unwrap();
        let copy = plan.clone();
        assert_eq!((plan.is_step_open(), copy.is_step_open()), (Some(true), Some(true)));
        close(&mut manager, &mut plan);
        assert_eq!(copy.is_step_open(), Some(false));
        assert_ne!(plan.is_step_open(), Some(true));
        // A later step does not revive it.
        manager.reserve(&[], &mut plan).unwrap();
        assert_eq!(copy.is_step_open(), Some(false));
        manager.commit(&mut plan).unwrap();
    }
    manager.reserve(&[(seq, 3)], &mut plan).unwrap();
    drop(manager);
    assert_eq!(plan.is_step_open(), Some(false));
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(text.as_bytes())?;
    file.commit()
}

#[cfg(unix)]
#[test]
fn x02_a_file_is_replaced_whole_and_nothing_else_is_touched() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let directory = std::env::temp_dir().join(format!("x02-{}", std::process::id()));
    fs::create_dir_all(directory.join("far")).unwrap();
    let (file, own) = (directory.join("a.pagedkv"), directory.join("a.pagedkv.part"));
    fs::write(&own, "mine").unwrap();
    replace(&file, "one").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    // Dropped, it never was.
    AtomicFile::create(&file).unwrap().write_all(b"half").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"one");
    replace(&file, "two").unwrap();
    assert_eq!((fs::read(&file).unwrap(), fs::read(&own).unwrap()), (b"two".to_vec(), b"mine".to_vec()));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(replace(&file, "three").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(fs::read(&file).unwrap(), b"two");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();

    // Links are followed, also those of a link, in other directories, and to what is not there yet.
    let (link, second, new) = (directory.join("link"), directory.join("far/second"), directory.join("far/new"));
    symlink("far/second", &link).unwrap();
    symlink("../a.pagedkv", &second).unwrap();
    replace(&link, "three").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"three");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::symlink_metadata(&second).unwrap().is_symlink());
    fs::remove_file(&second).unwrap();
    symlink("new", &second).unwrap();
    replace(&link, "four").unwrap();
    assert_eq!(fs::read(&new).unwrap(), b"four");
    fs::remove_file(&second).unwrap();
    symlink("../link", &second).unwrap();
    assert_eq!(replace(&link, "round").unwrap_err().kind(), io::ErrorKind::InvalidInput);

    let device = directory.join("null");
    symlink("/dev/null", &device).unwrap();
    for other in [Path::new("/dev/null"), &device, &directory, Path::new("/"), &directory.join("far/..")] {
        assert_eq!(replace(other, "lost").unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", other.display());
    }
    // A name of a file that is held open leads to it, but through a device.
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;

        let open = fs::File::open(&file).unwrap();
        for folder in ["/dev/fd", "/proc/self/fd"] {
            let error = replace(&Path::new(folder).join(open.as_raw_fd().to_string()), "lost").unwrap_err();
            assert!(error.to_string().starts_with("not a regular file; "), "{error}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"three");
    }
    assert_eq!(replace(&directory.join("none/a"), "lost").unwrap_err().kind(), io::ErrorKind::NotFound);
    let left: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "{left:?}");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn x10_two_tokens_of_a_step_have_two_slots() {
    let layout = CacheConfig::new(1, 1, 8).with_num_blocks(8).with_block_size(4).with_max_seq_len(32).layout().unwrap();
    let mut plan = StepPlan::new(Schedule::default());
    let mut refused = |tables: Tables<'_>, cu_seqlens_q: &[u32], append: Append<'_>| {
        plan.plan_tables(&layout, &RawTables { tables, cu_seqlens_q: Some(cu_seqlens_q), append }).err()
    };
    let shared = |slot, first, second| Some(TableError::SharedSlot { slot, first, second });
    let dense = |block_table, seq_lens| Tables::Dense { block_table, max_blocks: 2, seq_lens };
    let two = dense(&[5, 2, 5, 2], &[6, 7]);
    for (slots, error) in [
        ([21, 22, 9, 8], None),
        ([21, 22, 9, 21], shared(21, 0, 3)),
        ([-1, 9, 9, -1], shared(9, 1, 2)),
        ([-1, -1, -1, 0], None),
    ] {
        assert_eq!(refused(two, &[0, 2, 4], Append::Slots(&slots)), error);
    }
    // Positions 4 and 5 of the first sequence, 5 and 6 of the second, in one block.
    assert_eq!(refused(two, &[0, 2, 4], Append::FromTables), shared(9, 1, 2));
    let positions = Append::Positions { batch_indices: &[0, 1, -1, 1], positions: &[1, 0, 0, 1] };
    assert_eq!(refused(two, &[0, 2, 4], positions), shared(21, 0, 3));
    let pages = Tables::Csr { indptr: &[0, 1, 2], indices: &[3, 3], last_page_len: &[2, 2] };
    assert_eq!(refused(pages, &[0, 1, 2], Append::FromTables), shared(13, 0, 1));
    // Tokens from before the start of a sequence are written nowhere.
    assert_eq!(refused(dense(&[5, 2, 4, 1], &[0, 1]), &[0, 3, 6], Append::FromTables), None);
    let error = shared(9, 1, 2).unwrap();
    assert_eq!(error.to_string(), "tokens 1 and 2 both go to slot 9; give each a slot of its own, or -1 for padding");
}
