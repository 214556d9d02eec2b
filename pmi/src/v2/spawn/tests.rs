//! Tests of reading and writing spawns in PMI-2.

use super::*;
use crate::limits::{SPAWN_ARGS_MAX, SPAWN_INFO_MAX, SPAWN_RANKS_MAX};

fn command(program: &str, nprocs: u32, args: &[&str], info: &[(&str, &str)]) -> SpawnCommand {
    SpawnCommand {
        program: program.into(),
        args: args.iter().map(|&arg| arg.into()).collect(),
        nprocs,
        info: owned(info),
    }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect()
}

fn one(command: SpawnCommand) -> Result<SpawnRequest, SpawnError> {
    Ok(SpawnRequest { commands: vec![command], preputs: vec![] })
}

#[track_caller]
fn check(payload: &str, expected: Result<SpawnRequest, SpawnError>) {
    let shown = &payload[..payload.len().min(200)];
    assert_eq!(parse(Pairs::of(payload.as_bytes())), expected, "{shown}");
}

#[test]
fn spawns_of_slurm_and_old_mpich_are_read_and_written() {
    let payload = "cmd=spawn;ncmds=2;preputcount=1;ppkey0=PARENT_ROOT_PORT_NAME;ppval0=tag#0$;\
                   subcmd=./child;maxprocs=2;argc=2;argv0=two words;argv1=;infokeycount=1;infokey0=wdir;infoval0=/tmp;\
                   subcmd=other;maxprocs=1;argc=0;infokeycount=0;";
    let order = SpawnRequest {
        commands: vec![command("./child", 2, &["two words", ""], &[("wdir", "/tmp")]), command("other", 1, &[], &[])],
        preputs: owned(&[("PARENT_ROOT_PORT_NAME", "tag#0$")]),
    };
    check(payload, Ok(order.clone()));
    let mut out = b"cmd=spawn;".to_vec();
    write(&order, &mut out);
    assert_eq!(String::from_utf8_lossy(&out), payload);
}

#[test]
fn spawns_by_the_specification_of_new_mpich_are_read() {
    check(
        "cmd=spawn;ncmds=1;subcmd=a;maxprocs=1;argc=2;infokeycount=1;argv1=x;argv2=y;infokey0=k;infoval_0=v;thrid=0x1;",
        one(command("a", 1, &["x", "y"], &[("k", "v")])),
    );
}

#[test]
fn counts_may_be_left_out() {
    check("cmd=spawn;subcmd=a;maxprocs=1;argv0=x;", one(command("a", 1, &["x"], &[])));
    check("cmd=spawn;subcmd=a;;b;maxprocs= 1 ;", one(command("a;b", 1, &[], &[])));
}

#[test]
fn the_last_preput_of_a_key_wins() {
    let payload = "cmd=spawn;preputcount=3;ppkey0=a;ppval0=1;ppkey1=b;ppval1=2;ppkey2=a;ppval2=3;subcmd=x;maxprocs=1;";
    let preputs = owned(&[("a", "3"), ("b", "2")]);
    check(payload, Ok(SpawnRequest { commands: vec![command("x", 1, &[], &[])], preputs }));
}

#[test]
fn incomplete_spawns_are_refused() {
    for (rest, error) in [
        ("", SpawnRequestError::Commands.into()),
        ("maxprocs=1;argv0=x;", SpawnRequestError::Commands.into()),
        ("subcmd=a;", SpawnError::Missing("maxprocs")),
        ("subcmd=a;subcmd=b;maxprocs=1;", SpawnError::Missing("maxprocs")),
        ("subcmd=;maxprocs=1;", SpawnRequestError::Program.into()),
        ("subcmd=a;maxprocs=-1;", SpawnError::NotANumber("maxprocs")),
        ("subcmd=a;maxprocs=0;", SpawnRequestError::Ranks.into()),
        ("subcmd=a;maxprocs=1;argc=x;", SpawnError::NotANumber("argc")),
        ("subcmd=a;maxprocs=1;argc=2;argv0=x;", SpawnError::Incomplete("arguments")),
        ("subcmd=a;maxprocs=1;argv0=x;argv2=x;", SpawnError::Incomplete("arguments")),
        ("subcmd=a;maxprocs=1;infokeycount=1;infokey0=x;", SpawnError::Incomplete("infos")),
        ("subcmd=a;maxprocs=1;infokey0=x;", SpawnError::Incomplete("infos")),
        ("subcmd=a;maxprocs=1;infoval_0=x;", SpawnError::Incomplete("infos")),
        ("ncmds=2;subcmd=a;maxprocs=1;", SpawnError::Incomplete("commands")),
        ("ncmds=one;subcmd=a;maxprocs=1;", SpawnError::NotANumber("ncmds")),
        ("preputcount=1;subcmd=a;maxprocs=1;", SpawnError::Incomplete("preputs")),
        ("ppkey0=a;ppval1=b;ppkey1=a;subcmd=a;maxprocs=1;", SpawnError::Incomplete("preputs")),
        ("ppkey0=PMI_x;ppval0=b;subcmd=a;maxprocs=1;", {
            SpawnRequestError::Preput(crate::board::PutRefusal::KeyReserved).into()
        }),
    ] {
        check(&format!("cmd=spawn;{rest}"), Err(error));
    }
}

#[test]
fn each_bound_is_accepted_and_one_beyond_is_refused() {
    let many = |count: usize, text: &dyn Fn(usize) -> String| (0..count).map(text).collect::<String>();
    let outcome = |payload: String| parse(Pairs::of(payload.as_bytes())).map(drop);
    let commands = |count| outcome(many(count, &|_| "subcmd=a;maxprocs=1;".into()));
    assert_eq!(commands(SPAWN_COMMANDS_MAX), Ok(()));
    assert_eq!(commands(SPAWN_COMMANDS_MAX + 1), Err(SpawnRequestError::Commands.into()));
    let args = |count| outcome(format!("subcmd=a;maxprocs=1;{}", many(count, &|number| format!("argv{number}=;"))));
    assert_eq!(args(SPAWN_ARGS_MAX), Ok(()));
    assert_eq!(args(SPAWN_ARGS_MAX + 1), Err(SpawnRequestError::Args.into()));
    let info = |number| format!("infokey{number}=k;infoval{number}=v;");
    let infos = |count| outcome(format!("subcmd=a;maxprocs=1;{}", many(count, &info)));
    assert_eq!(infos(SPAWN_INFO_MAX), Ok(()));
    assert_eq!(infos(SPAWN_INFO_MAX + 1), Err(SpawnRequestError::Info.into()));
    let preput = |number| format!("ppkey{number}=k{number};ppval{number}=v;");
    let preputs = |count| outcome(format!("{}subcmd=a;maxprocs=1;", many(count, &preput)));
    assert_eq!(preputs(SPAWN_PREPUTS_MAX), Ok(()));
    assert_eq!(preputs(SPAWN_PREPUTS_MAX + 1), Err(SpawnRequestError::Preputs.into()));
    let ranks = |count: u32| outcome(format!("subcmd=a;maxprocs={count};"));
    assert_eq!(ranks(SPAWN_RANKS_MAX), Ok(()));
    assert_eq!(ranks(SPAWN_RANKS_MAX + 1), Err(SpawnRequestError::Ranks.into()));
}

mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![Just(b';'), Just(b'='), any::<u8>()], 0..8)
    }

    fn spawns() -> impl Strategy<Value = SpawnRequest> {
        let info = || vec((text(), text()), 0..3);
        let command = (text(), vec(text(), 0..3), 1..9_u32, info()).prop_map(|(program, args, nprocs, info)| {
            SpawnCommand { program: [b"p", &program[..]].concat(), args, nprocs, info }
        });
        let preputs = prop::collection::btree_map(vec(any::<u8>(), 1..4), text(), 0..3);
        (vec(command, 1..4), preputs)
            .prop_map(|(commands, preputs)| SpawnRequest { commands, preputs: preputs.into_iter().collect() })
    }

    proptest! {
        #[test]
        fn a_written_spawn_is_read(spawn in spawns()) {
            let mut out = Vec::new();
            write(&spawn, &mut out);
            prop_assert_eq!(parse(Pairs::of(&out)), Ok(spawn));
        }

        #[test]
        fn no_pairs_panic(
            pairs in "((ncmds|preputcount|ppkey|ppval|subcmd|maxprocs|argc|argv|infokey|infoval_?|infokeycount)\
                      [0-2]?=[0-2a]?;){0,20}",
        ) {
            if let Ok(order) = parse(Pairs::of(pairs.as_bytes())) {
                prop_assert_eq!(order.check(), Ok(()));
            }
        }
    }
}
