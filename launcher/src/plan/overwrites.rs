//! Checks that no report, and no file of the ranks' output, takes the place of standard input or of a program that PATH names.
//! [`cli`](crate::cli) checks the files that the words of the command line name.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nla::core::printable;
use nla::sys;

use crate::plan::request::Options;
use crate::plan::{Plan, checks, elf, pattern};
use crate::refusal::Refusal;

/// Fails if a file that the session writes is `input`, or a program that is found in PATH. Makes no system call for a session
/// without such files.
pub(super) fn check(plan: &Plan, input: BorrowedFd<'_>) -> Result<(), Refusal> {
    let reports = reports(&plan.options);
    let reports: Vec<_> =
        reports.into_iter().filter_map(|(option, file)| Some((option, sys::true_path(file?)))).collect();
    if reports.is_empty() && checks::patterns(&plan.options).next().is_none() {
        return Ok(());
    }
    let session = &plan.settings.session;
    let programs = plan.settings.first.commands.iter().filter(|command| !command.program.contains(&b'/'));
    let programs = programs.filter_map(|command| {
        let program = printable(&String::from_utf8_lossy(&command.program));
        Some((format!("the program '{program}'"), elf::file_of(session, command).ok()?))
    });
    let input = input_file(input).map(|file| ("standard input".to_owned(), file));
    for (what, file) in programs.chain(input) {
        let file = sys::true_path(&file);
        let report = reports.iter().find(|(_, report)| sys::is_one_file(report, &file)).map(|(option, _)| *option);
        let mut streams = checks::patterns(&plan.options);
        // A placeholder for a host or a session may stand for any name.
        let stream = streams.find(|(_, pattern)| !pattern::has_name(pattern) && pattern::may_name(pattern, &file));
        if let Some(option) = report.or(stream.map(|(option, _)| option)) {
            let text = format!("option '{option}' would overwrite {what}");
            return Err(Refusal::new(text, format!("name another file for '{option}'")));
        }
    }
    Ok(())
}

/// Returns the files of reports with their options.
fn reports(options: &Options) -> [(&'static str, Option<&Path>); 6] {
    let [stats, trace, report, profile_comm, save_rankmap, fault_history] = options.report_files();
    [
        ("--stats", stats),
        ("--trace", trace),
        ("--report", report),
        ("--profile-comm", profile_comm),
        ("--save-rankmap", save_rankmap),
        ("--fault-history", fault_history),
    ]
}

/// Returns the path of the regular file that `input` reads, unless it is also standard output or error: then reports follow what is
/// there.
fn input_file(input: BorrowedFd<'_>) -> Option<PathBuf> {
    let found = |stream: BorrowedFd<'_>| File::from(stream.try_clone_to_owned().ok()?).metadata().ok();
    let file = found(input).filter(fs::Metadata::is_file)?;
    let (out, err) = (io::stdout(), io::stderr());
    let is_written =
        |stream| found(stream).is_some_and(|stream| (stream.dev(), stream.ino()) == (file.dev(), file.ino()));
    if [out.as_fd(), err.as_fd()].into_iter().any(is_written) {
        return None;
    }
    fs::read_link(format!("/proc/self/fd/{}", input.as_raw_fd())).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::plan::tests::{machine, planned};

    #[test]
    fn standard_input_and_a_program_in_path_are_not_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for name in ["program", "input0", "other"] {
            fs::write(at(name), "").unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o700)).unwrap();
            fs::hard_link(at(name), at(&format!("{name}-2"))).unwrap();
        }
        let mut here = machine();
        here.wdir = place.path().to_owned();
        here.environment = vec![("PATH".into(), place.path().into())];
        let checked = |words: &str, input: &Path| {
            let words = words.replace("AT", &place.path().display().to_string());
            let plan = planned(&words, &here).unwrap();
            let checked = check(&plan, File::open(input).unwrap().as_fd());
            checked.map_err(|refusal| refusal.with_hint())
        };
        for (words, option, what) in [
            ("--stats=AT/program program", "--stats", "the program 'program'"),
            ("--trace=AT/program-2 -np 1 other : -np 1 program", "--trace", "the program 'program'"),
            ("--report=AT/program-2 program", "--report", "the program 'program'"),
            ("-outfile-pattern AT/program program", "-outfile-pattern", "the program 'program'"),
            ("--save-rankmap AT/input0 other", "--save-rankmap", "standard input"),
            ("--profile-comm AT/input0-2 other", "--profile-comm", "standard input"),
            ("-errfile-pattern AT/input%r other", "-errfile-pattern", "standard input"),
        ] {
            let expected =
                format!("option '{option}' would overwrite {what}\n  hint: name another file for '{option}'");
            assert_eq!(checked(words, &at("input0")), Err(expected), "{words}");
        }
        for words in ["--stats=AT/new program", "--stats=AT/program other", "--stats other", "program"] {
            assert_eq!(checked(words, &at("input0")), Ok(()), "{words}");
        }
        assert_eq!(checked("--stats=/dev/null other", Path::new("/dev/null")), Ok(()), "a device has no contents");
    }
}
