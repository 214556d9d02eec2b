//! Command lines whose programs come from a file.

use super::*;

fn from_file(line: &str, text: &str) -> Request {
    request_of(words(line), &|path| {
        assert_eq!(path, Path::new("jobs.conf"));
        Ok(text.as_bytes().to_vec())
    })
}

fn at(line: u32, column: u32) -> TypedAt {
    TypedAt::File { path: "jobs.conf".into(), line, column }
}

#[test]
fn lines_of_hydra() {
    let text = "# a comment\n-n 2 ./a 'x y' z\n\n  -np 3 -env K \"a b\" ./b : c";
    let request = from_file("-configfile jobs.conf", &text.replace(" : c", ""));
    let a = Command { nprocs: Some(2), args: vec!["x y".into(), "z".into()], place: at(2, 1), ..plain("./a") };
    let b = Command { nprocs: Some(3), env: vec![set("K", "a b")], place: at(4, 3), ..plain("./b") };
    assert_eq!(request.commands, [a, b]);
    assert_eq!(request.options, Options::default());
    assert_eq!(from_file("-configfile jobs.conf", text).commands[2].program, named("c"));
}

#[test]
fn load_files_of_cplant() {
    let text = "# Cplant\n-sz 100 first arg1\n-sz 4 \\\n   second # the others\n\nthird\n";
    let request = from_file("--configfile=jobs.conf", text);
    let seen: Vec<_> = request.commands.iter().map(|c| (c.nprocs, c.program.clone())).collect();
    let expected = [(Some(100), named("first")), (Some(4), named("second")), (None, named("third"))];
    assert_eq!(seen, expected);
    assert_eq!(request.commands[0].args, words("arg1"));
    assert_eq!(request.commands[1].args, words(""));
}

#[test]
fn global_options_may_stand_on_any_line() {
    let text = "-genv A 1 -ppn 2\n-l -n 1 ./a\n--timeout 5\n";
    let request = from_file("-configfile jobs.conf", text);
    assert_eq!(request.commands.len(), 1);
    assert_eq!(request.options, {
        Options {
            genv: vec![set("A", "1")],
            ppn: Some(2),
            prepend_rank: true,
            timeout: Some(Duration::from_secs(5)),
            ..Options::default()
        }
    });
}

#[test]
fn the_command_line_wins_over_the_file() {
    let text = "-genv A 1 -ppn 2 -q ./a\n";
    for line in ["-ppn 4 -genv A 2 -configfile jobs.conf -v", "-configfile jobs.conf -genv A 2 -ppn 4 -v"] {
        let options = from_file(line, text).options;
        assert_eq!(options.ppn, Some(4), "{line}");
        assert_eq!(options.genv, [set("A", "1"), set("A", "2")], "{line}");
        assert_eq!((options.quiet, options.verbose), (false, 1), "{line}");
    }
}

#[test]
fn the_last_configfile_wins() {
    let request = from_file("-configfile other -configfile jobs.conf", "./a");
    assert_eq!(request.commands, [Command { place: at(1, 1), ..plain("./a") }]);
}

#[test]
fn a_quoted_colon_is_an_argument() {
    let request = from_file("-configfile jobs.conf", "./a ':' \\: : ./b\n-env X ':' ./c");
    assert_eq!(request.commands.len(), 3);
    assert_eq!(request.commands[0].args, words(": :"));
    assert_eq!(request.commands[1].place, at(1, 14));
    assert_eq!(request.commands[2].env, [set("X", ":")]);
}

#[test]
fn bytes_of_a_file_are_kept() {
    let request = request_of(words("-configfile jobs.conf"), &|_| Ok(b"\xff '\xfe \x80'".to_vec()));
    let bytes = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    assert_eq!(request.commands[0].program, Program::Named(bytes(b"\xff")));
    assert_eq!(request.commands[0].args, [bytes(b"\xfe \x80")]);
}

#[test]
fn help_wins_before_the_file_is_read() {
    let typed = parse(OsStr::new("scela-run"), words("-configfile x -h"), &no_file);
    assert!(matches!(typed, Ok(Typed::Help(_))));
}
