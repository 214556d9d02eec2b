//! Staged directories, caches of nodes, and files of ranks that are brought back.
//!
//! Each run has a TMPDIR of its own, which must be empty at its end. Caches are in the TMPDIR of the test, by `--stage-cache`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::{Outcome, Pool, Process, Run, scela, sh};

/// A directory with files, directories and links.
fn directory(place: &Path) -> PathBuf {
    let top = place.join("data");
    fs::create_dir_all(top.join("inner/empty")).unwrap();
    fs::write(top.join("inner/run.sh"), "#!/bin/sh\necho \"ran $0\"\n").unwrap();
    fs::set_permissions(top.join("inner/run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    // Large ones have their own chunks, many small ones share some.
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(top.join("large"), &bytes).unwrap();
    (0..300)
        .for_each(|number| fs::write(top.join(format!("inner/f{number}")), &bytes[number..][..number * 7]).unwrap());
    symlink("../large", top.join("inner/link")).unwrap();
    symlink(top.join("inner"), top.join("absolute")).unwrap();
    fs::File::open(top.join("large"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(9))
        .unwrap();
    top
}

fn staging(top: &Path, options: &[&str]) -> Run {
    scela().args(["--stage-dir".as_ref(), top.as_os_str()]).args(options)
}

#[test]
fn ranks_find_a_copy_of_the_directory() {
    let place = tempfile::tempdir().unwrap();
    let top = directory(place.path());
    let script = "cd \"$SCELA_STAGE_DIR\" && diff -r --no-dereference -x absolute \"$1\" data && readlink data/absolute && \
                  cmp data/absolute/link data/large && stat -c '%a %Y' data/inner/run.sh data/large";
    let mut program = sh(script);
    program.push(top.clone().into());
    let outcome = staging(&top, &["--agents-as-nodes", "--fanout", "2"]).np(3).agents(3).program(program).run();
    let script = fs::metadata(top.join("inner/run.sh")).unwrap();
    let expected = ["../data/inner".to_owned(), format!("750 {}", script.mtime()), "644 9".to_owned()];
    outcome.is_quiet_success().wrote_lines([&expected[..]; 3].concat());
}

#[test]
fn programs_of_the_directory_run_there() {
    let place = tempfile::tempdir().unwrap();
    let top = directory(place.path());
    let run = |program: PathBuf| {
        let run = staging(&top, &[]).np(1);
        let temporary = run.world().temporary();
        (run.program(vec![program.into()]).run(), temporary)
    };
    for program in [top.join("inner/run.sh"), "$SCELA_STAGE_DIR/data/inner/run.sh".into()] {
        let (outcome, temporary) = run(program);
        outcome.is_quiet_success();
        let line = outcome.out();
        let path = line.strip_prefix("ran ").map(|path| Path::new(path.trim()).to_owned()).unwrap_or_default();
        assert!(path.starts_with(&temporary) && path.ends_with("data/inner/run.sh"), "{line}");
    }
    // Words that name the variable are replaced, though no shell sees them.
    let program = ["cmp", "$SCELA_STAGE_DIR/data/large", "${SCELA_STAGE_DIR}/data/inner/link"].map(Into::into).to_vec();
    staging(&top, &[]).np(1).program(program).run().is_quiet_success();
}

#[test]
fn a_configfile_of_several_programs_works_with_staging() {
    let place = tempfile::tempdir().unwrap();
    let top = directory(place.path());
    let greeting = tests::Greeting::build(place.path());
    let file = place.path().join("job");
    let lines = format!(
        "--stage --stage-dir {top}\n-np 2 {program}\n-np 1 {top}/inner/run.sh\n-np 1 sh -c 'cmp $SCELA_STAGE_DIR/data/large {top}/large'\n",
        top = top.display(),
        program = greeting.program().display()
    );
    fs::write(&file, lines).unwrap();
    let outcome = scela().agents(2).args(["-configfile".as_ref(), file.as_os_str()]).run();
    outcome.is_quiet_success();
    let out = outcome.out();
    assert_eq!((out.matches("greeting 42\n").count(), out.matches("data/inner/run.sh\n").count()), (2, 1), "{out}");
}

#[test]
fn what_cannot_be_staged_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let top = directory(place.path());
    symlink("/etc/passwd", top.join("out")).unwrap();
    let run = |top: &Path| staging(top, &[]).np(1).program(sh("true")).run();
    run(&top).has_code(251).says("out' leads to '/etc/passwd', which is not sent").says("hint: stage that too");
    fs::remove_file(top.join("out")).unwrap();
    nix::unistd::mkfifo(&top.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    run(&top).has_code(251).says("pipe' is neither a file, a directory nor a link");
    run(&place.path().join("none")).has_code(251).says("none' cannot be read: No such file or directory");
    run(&top.join("large")).has_code(251).says("large' cannot be read: Not a directory");
}

/// Returns the bytes that the launcher's links have sent.
fn sent(stats: &Path) -> u64 {
    let statistics: Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
    statistics["levels"][0]["link_bytes"].as_u64().unwrap()
}

#[test]
fn nodes_with_a_cache_get_only_what_they_lack() {
    let place = tempfile::tempdir().unwrap();
    let (top, temporary, stats) = (directory(place.path()), place.path().join("tmp"), place.path().join("s.json"));
    fs::create_dir(&temporary).unwrap();
    let run = |size: &str| {
        let (check, to) =
            (format!("diff -r {} $SCELA_STAGE_DIR/data", top.display()), format!("--stats={}", stats.display()));
        let run = staging(&top, &["--stage-cache", size, "--agents-as-nodes", &to]).np(2).agents(2);
        run.env("TMPDIR", &temporary).program(sh(&check)).run().has_code(0).wrote("");
        sent(&stats)
    };
    let entries = || fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    assert!(run("none") > 6_000_000 && entries().is_empty());
    let first = run("1G");
    let [cache] = &entries()[..] else { panic!("{:?}", entries()) };
    assert!(first > 6_000_000, "{first}");
    assert_eq!(fs::metadata(cache).unwrap().mode() & 0o7777, 0o700);
    let second = run("1G");
    assert!(second < 200_000, "{second}");
    // A damaged chunk and a missing one are sent again.
    let chunks: Vec<_> = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    let large = chunks.iter().find(|chunk| fs::metadata(chunk).unwrap().len() == 1 << 20).unwrap();
    let mut damaged = fs::read(large).unwrap();
    damaged[7] ^= 1;
    fs::write(large, damaged).unwrap();
    let third = run("1G");
    assert!((1 << 20..4 << 20).contains(&third), "{third}");
    assert!(run("1G") < 200_000, "it was replaced");
    // A directory that others may enter is not used.
    fs::set_permissions(cache, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(run("1G") > 6_000_000);
    fs::set_permissions(cache, fs::Permissions::from_mode(0o700)).unwrap();
    run("1M");
    let left: u64 = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(left <= 1_000_000, "{left}");
}

#[test]
fn a_job_of_a_pool_uses_the_cache() {
    let place = tempfile::tempdir().unwrap();
    let (top, temporary) = (directory(place.path()), place.path().join("tmp"));
    fs::create_dir(&temporary).unwrap();
    let pool = Pool::start(&["--slots", "2"]);
    for _ in 0..2 {
        let run = pool.job().np(2).args(["--stage-cache", "1G", "--stage-dir", top.to_str().unwrap()]);
        run.env("TMPDIR", &temporary)
            .program(sh("cmp $SCELA_STAGE_DIR/data/large $SCELA_STAGE_DIR/data/inner/link"))
            .run()
            .has_code(0);
    }
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 1, "the cache");
}

/// Returns the files below a directory with their texts.
fn texts(top: &Path) -> Vec<String> {
    let (mut files, mut left) = (Vec::new(), vec![top.to_owned()]);
    while let Some(place) = left.pop() {
        for entry in fs::read_dir(place).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(top).unwrap().display().to_string();
                files.push(format!("{name} {}", fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

fn collecting(place: &Path, options: &[&str], script: &str) -> Outcome {
    let work = place.join("work");
    fs::create_dir_all(&work).unwrap();
    let to = place.join("to").display().to_string();
    let options: Vec<String> = options.iter().map(|option| option.replace("TO", &to)).collect();
    let run = scela().np(4).agents(2).args(["--agents-as-nodes", "--fanout", "2"]).args(&options);
    run.args(["-wdir".as_ref(), work.as_os_str()]).program(sh(script)).run()
}

#[test]
fn files_of_ranks_are_brought_back() {
    let place = tempfile::tempdir().unwrap();
    let script = "mkdir -p out/deep; echo $PMI_RANK > out/deep/r$PMI_RANK; echo same > shared; echo x > other";
    let outcome = collecting(place.path(), &["--collect", "out=TO", "--collect", "sh*d=TO"], script);
    outcome.is_quiet_success();
    let expected = ["out/deep/r0 0\n", "out/deep/r1 1\n", "out/deep/r2 2\n", "out/deep/r3 3\n", "shared same\n"];
    assert_eq!(texts(&place.path().join("to")), expected);
}

#[test]
fn files_of_the_stage_directory_are_brought_back_before_it_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let top = directory(place.path());
    let options = ["--stage-dir", top.to_str().unwrap(), "--collect", "$SCELA_STAGE_DIR/data/*.out=TO"];
    // Both agents have a file of this name.
    let script = "head -c 1500000 /dev/zero | tr '\\0' $PMI_RANK > $SCELA_STAGE_DIR/data/$((PMI_RANK % 2)).out";
    let outcome = collecting(place.path(), &options, script);
    outcome.is_quiet_success();
    let files: Vec<_> =
        texts(&place.path().join("to")).iter().map(|file| (file.len(), file[..14].to_owned())).collect();
    let name = |name: &str| (name.len() + 1_500_001, format!("{name} ")[..].to_owned());
    let lengths: Vec<_> = files.iter().map(|(length, _)| *length).collect();
    assert_eq!(lengths, ["data/0.out.0", "data/0.out.2", "data/1.out.0", "data/1.out.2"].map(|text| name(text).0));
}

#[test]
fn a_failed_job_brings_its_files_back_too() {
    let place = tempfile::tempdir().unwrap();
    let script = "echo $PMI_RANK > r$PMI_RANK; [ $PMI_RANK != 3 ] || exit 7; sleep 100";
    let script = format!("{script} & wait");
    let outcome = collecting(place.path(), &["--collect", "r3=TO"], &script);
    outcome.has_code(7);
    assert_eq!(texts(&place.path().join("to")), ["r3 3\n"]);
}

#[test]
fn what_cannot_be_collected_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let outcome = collecting(place.path(), &["--collect", "none*=TO"], "true");
    outcome.has_code(0).says("warning: no file of a rank matches 'none*'");
    let options = ["--collect", "large=TO", "--collect-max", "100k"];
    let outcome = collecting(place.path(), &options, "head -c 100001 /dev/zero > large");
    outcome
        .has_code(1)
        .says("files were not collected from ")
        .says(": they exceed 100 kB with 'large'; --collect-max raises that limit");
    assert!(texts(&place.path().join("to")).is_empty());
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let option = format!("a={}", file.display());
    collecting(place.path(), &["--collect", &option], "true").has_code(2).says("file' is not a directory");
    collecting(place.path(), &["--collect", "../a=TO"], "true")
        .has_code(2)
        .says("'../a' is not a pattern for files below");
    // Links of ranks are not followed.
    let outcome = collecting(place.path(), &["--collect", "*=TO"], "ln -sf /etc/passwd link; rm -f large");
    outcome.has_code(0).says("no file of a rank matches '*'");
}

#[test]
fn an_interrupt_leaves_no_unfinished_files() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    let options = ["--collect".to_owned(), format!("big={}", to.display())];
    let run = scela().np(1).args(options).args(["-wdir".as_ref(), place.path().as_os_str()]);
    let running = run.program(sh("truncate -s 200M big")).spawn();
    running.wait_until("a file that arrives", || fs::read_dir(&to).ok()?.next().map(drop));
    running.signal(Signal::SIGINT);
    let outcome = running.finish();
    let left: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    if left.is_empty() {
        outcome.has_code(130).says("error: files were not collected: interrupted");
    } else {
        // All had arrived before the signal took effect.
        assert_eq!(left, ["big"], "{outcome}");
    }
}

#[test]
fn nothing_is_left_after_kills_of_agents_with_directories() {
    let place = tempfile::tempdir().unwrap();
    let top = directory(place.path());
    // The harness checks that TMPDIR is empty.
    for is_guardian in [false, true] {
        let options = ["--collect", "$SCELA_STAGE_DIR/data/large=to", "--fanout", "2"];
        let run =
            staging(&top, &options).np(3).agents(3).directory(place.path()).program(sh("echo ready; exec sleep 1000"));
        let running = run.spawn();
        running.wait_for_times("ready", 3);
        let agent = Process::of(running.rank(2).parent).unwrap();
        let killed = if is_guardian { Process::of(agent.parent).unwrap() } else { agent };
        killed.signal(Signal::SIGKILL);
        running.finish().has_code(252);
        let left: Vec<_> = fs::read_dir(place.path().join("to"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert!(left.iter().all(|name| name.to_string_lossy().starts_with("data")), "{left:?}");
    }
}
