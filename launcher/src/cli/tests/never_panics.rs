//! Random words and random files: parsing never panics, and its result keeps its invariants.

use super::*;

/// Numbers from a fixed seed (a linear congruential generator), so that a failure repeats.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn pick<'a>(&mut self, from: &[&'a [u8]]) -> &'a [u8] {
        from[self.below(from.len())]
    }
}

const PIECES: &[&[u8]] = &[
    b"-",
    b"--",
    b":",
    b"=",
    b"",
    b"n",
    b"np",
    b"env",
    b"genv",
    b"x",
    b"4",
    b"0",
    b"-1",
    b"K=V",
    b"./a",
    b"\xff",
    b"\x1b",
    b" ",
    b"'",
    b"\"",
    b"\\",
    b"\n",
    b"\r\n",
    b"#",
    b"\0",
    b"v",
    b"vvv",
    b"configfile",
    b"demo",
    b"timeout",
    b"1.5h",
    b"s",
    b"3-5,",
    b"label",
    b"\xc3\xa9",
    b"fanout",
    b"99999999999999999999",
    b"wdir",
    b"l",
    b"bind-to",
    b"envlist",
    b"a,b",
    b".",
];

fn random_bytes(random: &mut Lcg, pieces_max: usize) -> Vec<u8> {
    let pieces = random.below(pieces_max);
    (0..pieces).flat_map(|_| random.pick(PIECES).to_vec()).collect()
}

fn random_word(random: &mut Lcg) -> OsString {
    let options: Vec<_> = options::OPTIONS.iter().flat_map(|spec| spec.names).collect();
    let mut bytes = Vec::new();
    if random.below(2) == 0 {
        bytes.extend(random.pick(&[b"-", b"--"]));
        bytes.extend(options[random.below(options.len())].as_bytes());
    }
    bytes.extend(random_bytes(random, 4));
    OsString::from_vec(bytes)
}

fn check_request(request: &Request) {
    assert!(!request.commands.is_empty());
    let options = &request.options;
    assert!((FANOUT_MIN..=FANOUT_MAX).contains(&options.fanout()));
    assert!(options.timeout.is_none_or(|time| !time.is_zero() && time <= TIMEOUT_MAX));
    assert!(!(options.quiet && options.verbose > 0));
    for command in &request.commands {
        assert!(command.nprocs.is_none_or(|nprocs| (1..=RANKS_MAX).contains(&nprocs)));
        assert!(command.program != named(""));
        assert!(command.wdir.as_ref().is_none_or(|wdir| !wdir.as_os_str().is_empty()));
    }
    if let Some(StdinTo::Ranks(ranges)) = &options.stdin {
        assert!(!ranges.is_empty() && ranges.iter().all(|(first, last)| first <= last));
        assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
    }
}

#[test]
fn random_words_never_panic() {
    let mut random = Lcg(1);
    let (mut sessions, mut errors) = (0, 0);
    for _ in 0..10_000 {
        let count = random.below(8);
        let args: Vec<_> = (0..count).map(|_| random_word(&mut random)).collect();
        let file = random_bytes(&mut random, 30);
        match parse(OsStr::new("scela-run"), args.clone(), &|_| Ok(file.clone())) {
            Ok(Typed::Run(request)) => {
                check_request(&request);
                sessions += 1;
            }
            Ok(Typed::Simulate(_) | Typed::Calibrate(_) | Typed::Help(_) | Typed::Version(_)) => {}
            Err(error) => {
                let (message, hint) = (error.to_string(), error.hint());
                assert!(!message.contains(char::is_control), "{args:?}: {message}");
                assert!(!hint.contains(char::is_control), "{args:?}: {hint}");
                assert!(!message.ends_with('.') && !hint.ends_with('.'), "{args:?}");
                errors += 1;
            }
        }
    }
    assert!(sessions > 500 && errors > 1000, "{sessions} sessions, {errors} errors");
}

#[test]
fn random_files_never_panic() {
    let mut random = Lcg(2);
    let mut sessions = 0;
    for _ in 0..10_000 {
        let file = random_bytes(&mut random, 20);
        let args = words("-configfile f");
        match parse(OsStr::new("scela-run"), args, &|_| Ok(file.clone())) {
            Ok(Typed::Run(request)) => {
                check_request(&request);
                sessions += 1;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(!error.to_string().contains(char::is_control)),
        }
    }
    assert!(sessions > 100, "{sessions} sessions");
}

#[test]
fn quoted_words_are_read_back() {
    let mut random = Lcg(3);
    for _ in 0..3000 {
        let count = random.below(6);
        let mut args: Vec<Vec<u8>> = (0..count).map(|_| random_bytes(&mut random, 5)).collect();
        for arg in &mut args {
            arg.retain(|byte| !matches!(byte, 0 | b'\n'));
        }
        let mut file = b"./a".to_vec();
        for arg in &args {
            file.push(b' ');
            for byte in arg {
                // Quote the byte in one of three ways.
                match (random.below(3), byte) {
                    (0, b'\'') | (1, b'"' | b'\\') | (2, _) => file.extend([b'\\', *byte]),
                    (0, _) => file.extend([b'\'', *byte, b'\'']),
                    _ => file.extend([b'"', *byte, b'"']),
                }
            }
            file.extend(b"''");
        }
        let request = request_of(words("-configfile f"), &|_| Ok(file.clone()));
        let args: Vec<_> = args.into_iter().map(OsString::from_vec).collect();
        assert_eq!(request.commands.len(), 1);
        assert_eq!(request.commands[0].args, args);
    }
}
