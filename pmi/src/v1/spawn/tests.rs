//! Tests of [`SpawnReader`].

use super::*;
use crate::limits::SPAWN_COMMANDS_MAX;

type Outcome = Result<SpawnRequest, SpawnError>;

/// Reads lines, of which only the last one may end the request.
#[track_caller]
fn read(text: &str) -> Outcome {
    let mut reader = SpawnReader::default();
    let lines: Vec<&str> = text.lines().collect();
    let (last, before) = lines.split_last().unwrap();
    for line in before {
        assert_eq!(reader.read(line.as_bytes()), None, "{line}");
    }
    reader.read(last.as_bytes()).unwrap_or_else(|| panic!("not complete after {last}"))
}

fn bytes(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|item| item.as_bytes().to_vec()).collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    list.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

fn command(program: &str, nprocs: u32, args: &[&str], info: &[(&str, &str)]) -> SpawnCommand {
    SpawnCommand { program: program.as_bytes().to_vec(), args: bytes(args), nprocs, info: pairs(info) }
}

#[test]
fn the_block_of_the_pmi_reference_is_read() {
    let order = read(
        "mcmd=spawn\nnprocs=2\nexecname=python3\ntotspawns=1\nspawnssofar=1\narg1=/path/cli.py\n\
         arg2=two words\nargcnt=2\npreput_num=1\npreput_key_0=PARENT_ROOT_PORT_NAME\n\
         preput_val_0=tag#0$desc#a b$\ninfo_num=1\ninfo_key_0=wdir\ninfo_val_0=/tmp\nendcmd",
    );
    let expected = SpawnRequest {
        commands: vec![command("python3", 2, &["/path/cli.py", "two words"], &[("wdir", "/tmp")])],
        preputs: pairs(&[("PARENT_ROOT_PORT_NAME", "tag#0$desc#a b$")]),
    };
    assert_eq!(order, Ok(expected));
}

#[test]
fn fields_may_come_in_any_order_and_unknown_ones_are_ignored() {
    // MPICH >= 4.1 sends argcnt before the arguments.
    let order = read(
        "mcmd=spawn\nargcnt=3\nargument=no\narg3=\narg1= -x=y \nthreads\narg2=b\nexecname=a b\n\
         color=red\nspawnssofar=1\nnprocs=1\ntotspawns=1\n\nendcmd",
    );
    assert_eq!(order.unwrap().commands, [command("a b", 1, &[" -x=y ", "b", ""], &[])]);
}

#[test]
fn each_command_has_a_block_and_preputs_are_merged() {
    let legacy = read(
        "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=2\nspawnssofar=1\npreput_num=1\n\
         preput_key_0=k\npreput_val_0=v\nendcmd\nmcmd=spawn\nnprocs=2\nexecname=b\ntotspawns=2\n\
         spawnssofar=2\npreput_num=1\npreput_key_0=k\npreput_val_0=v\nendcmd",
    );
    let head = read(
        "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=2\nspawnssofar=1\npreput_num=1\n\
         preput_key_0=k\npreput_val_0=v\nendcmd\nmcmd=spawn\nnprocs=2\nexecname=b\ntotspawns=2\n\
         spawnssofar=2\nendcmd",
    );
    let expected = SpawnRequest {
        commands: vec![command("a", 1, &[], &[]), command("b", 2, &[], &[])],
        preputs: pairs(&[("k", "v")]),
    };
    assert_eq!(legacy.as_ref(), Ok(&expected));
    assert_eq!(head, legacy);
    assert_eq!(expected.ranks(), 3);
}

#[test]
fn errors_name_what_is_wrong() {
    for (fields, words) in [
        ("execname=a", "nprocs_missing"),
        ("nprocs=1", "execname_missing"),
        ("nprocs=x\nexecname=a", "nprocs_is_not_a_number"),
        ("nprocs=-1\nexecname=a", "nprocs_is_not_a_number"),
        ("nprocs=4294967296\nexecname=a", "nprocs_is_not_a_number"),
        ("nprocs=0\nexecname=a", "number_of_processes_not_in_1..1048576"),
        ("nprocs=1048577\nexecname=a", "number_of_processes_not_in_1..1048576"),
        ("nprocs=1\nexecname=", "program_missing"),
        ("nprocs=1\nexecname=a\narg1=x\narg3=y", "arguments_incomplete"),
        ("nprocs=1\nexecname=a\narg2=x", "arguments_incomplete"),
        ("nprocs=1\nexecname=a\narg1=x\nargcnt=2", "arguments_incomplete"),
        ("nprocs=1\nexecname=a\ninfo_key_0=x", "infos_incomplete"),
        ("nprocs=1\nexecname=a\npreput_num=1", "preputs_incomplete"),
        ("nprocs=1\nexecname=a\npreput_key_0=PMI_x\npreput_val_0=y", "preput_key_reserved"),
        ("nprocs=1\nexecname=a\ntotspawns=0\nspawnssofar=1", ""),
        ("nprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=2", "blocks_out_of_order"),
        ("nprocs=1\nexecname=a\nmcmd=spawn", "blocks_out_of_order"),
    ] {
        let outcome = read(&format!("mcmd=spawn\n{fields}\nendcmd"));
        match outcome {
            Err(error) => assert_eq!(error.to_string(), words, "{fields}"),
            // `totspawns=0` is wrong with one block, but harmless.
            Ok(_) => assert_eq!(words, "", "{fields}"),
        }
    }
    assert_eq!(read("mcmd=dance\nx=y\nendcmd"), Err(SpawnError::Unsupported));
}

#[test]
fn after_an_error_the_reader_reads_to_the_end_without_storing() {
    let mut reader = SpawnReader::default();
    for line in ["mcmd=spawn", "nprocs=x", "execname=a", "arg1=b", "totspawns=2", "spawnssofar=1"] {
        assert_eq!(reader.read(line.as_bytes()), None);
    }
    let block = reader.block.as_ref().unwrap();
    assert!(block.command.args.is_empty() && block.bytes == 0);
    assert_eq!(reader.read(b"endcmd"), None, "another block follows");
    assert!(!reader.is_inside_block());
    for line in ["mcmd=spawn", "nprocs=1", "execname=a", "totspawns=2", "spawnssofar=2"] {
        assert_eq!(reader.read(line.as_bytes()), None);
    }
    assert_eq!(reader.read(b"endcmd"), Some(Err(SpawnError::NotANumber("nprocs"))));
}

/// Reads one complete block with these additional lines.
fn block_with(lines: impl IntoIterator<Item = String>) -> Outcome {
    let lines: Vec<String> = lines.into_iter().collect();
    read(&format!("mcmd=spawn\nnprocs=1\nexecname=a\n{}\nendcmd", lines.join("\n")))
}

#[test]
fn each_bound_is_accepted_and_one_beyond_is_refused() {
    let args = |count| block_with((1..=count).map(|number| format!("arg{number}=")));
    assert_eq!(args(SPAWN_ARGS_MAX).unwrap().commands[0].args.len(), SPAWN_ARGS_MAX);
    assert_eq!(args(SPAWN_ARGS_MAX + 1), Err(SpawnRequestError::Args.into()));

    let infos = |count| block_with((0..count).map(|number| format!("info_key_{number}=k\ninfo_val_{number}=v")));
    assert_eq!(infos(SPAWN_INFO_MAX).unwrap().commands[0].info.len(), SPAWN_INFO_MAX);
    assert_eq!(infos(SPAWN_INFO_MAX + 1), Err(SpawnRequestError::Info.into()));

    let preputs =
        |count| block_with((0..count).map(|number| format!("preput_key_{number}=k{number}\npreput_val_{number}=v")));
    assert_eq!(preputs(SPAWN_PREPUTS_MAX).unwrap().preputs.len(), SPAWN_PREPUTS_MAX);
    assert_eq!(preputs(SPAWN_PREPUTS_MAX + 1), Err(SpawnRequestError::Preputs.into()));

    // The program's name takes one byte.
    let bytes = |count: usize| block_with([format!("arg1={}", "x".repeat(count - 1))]);
    assert!(bytes(SPAWN_BYTES_MAX).is_ok());
    assert_eq!(bytes(SPAWN_BYTES_MAX + 1), Err(SpawnRequestError::Bytes.into()));

    let commands = |count: usize| {
        let block = |number: usize| {
            format!("mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns={count}\nspawnssofar={number}\nendcmd\n")
        };
        read(&(1..=count).map(block).collect::<String>())
    };
    assert_eq!(commands(SPAWN_COMMANDS_MAX).unwrap().commands.len(), SPAWN_COMMANDS_MAX);
    assert_eq!(commands(SPAWN_COMMANDS_MAX + 1), Err(SpawnRequestError::Commands.into()));
}

#[test]
fn bytes_of_all_blocks_are_counted() {
    let half = "x".repeat(SPAWN_BYTES_MAX / 2);
    let block =
        |number| format!("mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=2\nspawnssofar={number}\narg1={half}\nendcmd\n");
    assert_eq!(read(&(block(1) + &block(2))), Err(SpawnRequestError::Bytes.into()));
}

mod properties {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn text(lengths: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        vec(any::<u8>().prop_filter("newline", |byte| *byte != b'\n'), lengths)
    }

    fn commands() -> impl Strategy<Value = Vec<SpawnCommand>> {
        let info = vec((text(0..6), text(0..6)), 0..3);
        let command = (text(1..9), vec(text(0..9), 0..4), 1_u32..9, info);
        let command = command.prop_map(|(program, args, nprocs, info)| SpawnCommand { program, args, nprocs, info });
        vec(command, 1..4)
    }

    proptest! {
        #[test]
        fn a_written_spawn_is_read(
            commands in commands(),
            preputs in btree_map("[a-z]{1,6}", text(0..9), 0..4),
        ) {
            let preputs = preputs.into_iter().map(|(key, value)| (key.into_bytes(), value)).collect();
            let order = SpawnRequest { commands, preputs };
            let mut written = Vec::new();
            write_spawn(&order, &mut written);
            let mut reader = SpawnReader::default();
            let mut outcomes: Vec<Outcome> = Vec::new();
            for line in written.strip_suffix(b"\n").unwrap().split(|&byte| byte == b'\n') {
                outcomes.extend(reader.read(line));
            }
            prop_assert_eq!(outcomes, [Ok(order.clone())]);
            let bytes = rmp_serde::to_vec(&order).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<SpawnRequest>(&bytes).unwrap(), order);
        }

        #[test]
        fn no_lines_panic(lines in vec(
            "(mcmd=spawn|endcmd|nprocs=[0-9]{0,2}|execname=a|totspawns=[0-3]|spawnssofar=[0-3]|arg[0-4]=x|\
             argcnt=[0-9]|preput_key_[01]=k|preput_val_[01]=v|preput_num=1|info_key_0=|info_val_0=|=|x)",
            0..40,
        )) {
            let mut reader = SpawnReader::default();
            for line in lines {
                if reader.read(line.as_bytes()).is_some() {
                    reader = SpawnReader::default();
                }
            }
        }
    }
}
