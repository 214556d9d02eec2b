//! Hosts, and how agents are started: spellings, conflicts, calibration.

use super::errors::{check, error_of};
use super::*;
use crate::cluster::manager::{Manager, ManagerChoice};
use crate::cluster::node_list::HostSource;
use crate::cluster::placement::MapBy;
use crate::plan::request::{BootstrapKind, LaunchShape};
use nla::core::{BindTo, Level, MapWithin, MemoryPolicy};

fn list(text: &str) -> HostSource {
    HostSource::List(text.into())
}

fn file(name: &str) -> HostSource {
    HostSource::File(name.into())
}

#[test]
fn hosts_and_placement() {
    let spellings = ["-f h", "-hostfile h", "--hostfile=h", "-machinefile h", "--machinefile h", "-f=h"];
    check_options(&spellings, |o| o.hosts.sources = vec![file("h")]);
    check_options(&["-f -"], |o| o.hosts.sources = vec![file("-")]);
    let spellings = ["-hosts a,b:2", "-H a,b:2", "-host a,b:2", "--host a,b:2", "--hosts=a,b:2"];
    check_options(&spellings, |o| o.hosts.sources = vec![list("a,b:2")]);
    check_options(&["-f h -H a -f -"], |o| o.hosts.sources = vec![file("h"), list("a"), file("-")]);
    check_options(&["--exclude a[1-2]", "-exclude b --exclude=a[1-2]"], |o| {
        o.hosts.exclude = Some("a[1-2]".into());
    });
    check_options(&["--select 1..4,10", "-select=1..4,10"], |o| o.hosts.select = Some("1..4,10".into()));
    check_options(&["--rm none", "-rmk none", "-rmk user", "-rm slurm -rm=NONE"], |o| {
        o.hosts.manager = ManagerChoice::None;
    });
    check_options(&["", "--rm auto", "--map-by slot", "--spares 0", "--launch auto", "--bootstrap auto"], |_| {});
    check_options(&["-rmk slurm", "--rm=slurm"], |o| o.hosts.manager = ManagerChoice::Only(Manager::Slurm));
    check_options(&["--map-by node", "-map-by=Node"], |o| o.hosts.map_by = MapBy::Node);
    check_options(&["--map-by ppr:4:node"], |o| o.hosts.map_by = MapBy::PerNode(4));
    check_options(&["--map-by numa:PE=2"], |o| {
        (o.binding.map_within, o.binding.elements) = (Some(MapWithin::Each(Level::Numa)), Some(2));
    });
    check_options(&["--bind-to core:2:overload-allowed", "-bind-to=Core:overload-allowed:2"], |o| {
        (o.binding.bind_to, o.binding.overloads) = (Some(BindTo::Parts(Level::Core, 2)), true);
    });
    check_options(
        &["--cpus-per-rank 4 --mem-bind local --report-bindings", "-cpus-per-rank=4 -membind local -report-bindings"],
        |o| {
            o.binding.cpus_per_rank = Some(4);
            o.binding.memory = MemoryPolicy::Local;
            o.binding.reports = true;
        },
    );
    check_options(&["--gpus-per-rank 2", "-gpus-per-rank=1 -gpus-per-rank 2"], |o| {
        o.accelerators.gpus_per_rank = Some(2);
    });
    check_options(&["--gres gpu:a100:2 --gres fpga", "-gres=gpu:a100:2,FPGA:1"], |o| {
        o.accelerators.gres = "gpu:a100:2,fpga:1".parse().unwrap();
    });
    check_options(&["-rankmap 0,0,1", "--rankmap=0,0,1"], |o| o.hosts.rankmap = Some("0,0,1".into()));
}

#[test]
fn options_about_the_start_of_agents() {
    check_options(&["--bootstrap ssh", "-bootstrap ssh", "-launcher ssh", "--launcher=fork -launcher ssh"], |o| {
        o.launch.bootstrap = Some(BootstrapKind::Ssh);
    });
    check_options(&["-launcher fork -launcher auto"], |_| {});
    let words = vec!["-launcher".into(), "exec:kubectl exec -i {host} --".into(), "./a".into()];
    let exec = BootstrapKind::Exec("kubectl exec -i {host} --".into());
    assert_eq!(request_of(words, &no_file).options.launch.bootstrap, Some(exec));
    check_options(&["-launcher-exec /bin/s", "-bootstrap-exec /bin/s", "--launcher-exec=/bin/s"], |o| {
        o.launch.launcher_exec = Some("/bin/s".into());
    });
    check_options(&["--launch-agent /opt/scela-run"], |o| o.launch.launch_agent = Some("/opt/scela-run".into()));
    check_options(&["--clean-program"], |o| o.launch.clean_program = true);
    check_options(&["--launch linear"], |o| o.launch.shape = LaunchShape::Linear);
    check_options(&["--launch=flat", "-launch tree -launch flat"], |o| o.launch.shape = LaunchShape::Flat);
    check_options(&["--batch 8", "-batch=8", "-batch8"], |o| o.launch.batch = Some(8));
    check_options(&["--connect-back fe80::1%ib0", "-connect-back=[fe80::1%ib0]"], |o| {
        o.launch.connect_back = Some("fe80::1%ib0".into());
    });
    check_options(&["-iface ib0", "--iface=ib0"], |o| o.launch.iface = Some("ib0".into()));
    check_options(&["--port-range 5000:5099", "--port-range=5000-5099"], |o| {
        o.launch.port_range = Some((5000, 5099));
    });
    check_options(&["--no-ports", "-no-ports"], |o| o.launch.no_ports = true);
    check_options(&["--min-nodes 27"], |o| o.launch.min_nodes = Some(27));
    check_options(&["--spares 2"], |o| o.launch.spares = 2);
    check_options(&["--wait-for-hosts 5m", "-wait-for-hosts=300s"], |o| {
        o.launch.wait_for_hosts = Some(Duration::from_secs(300));
    });
    check_options(&["--start-timeout 1.5m", "-start-timeout=90"], |o| {
        o.launch.deadline = Some(Duration::from_secs(90));
    });
    check_options(&["--explain", "-explain"], |o| o.explain = true);
}

#[test]
fn hosts_of_the_command_line_replace_those_of_the_file() {
    let from_file = |line| request_of(words(line), &|_| Ok(b"-H a -f h -rmk none\n./a\n".to_vec())).options.hosts;
    assert_eq!(from_file("-configfile jobs").sources, [list("a"), file("h")]);
    let hosts = from_file("-H b -configfile jobs");
    assert_eq!((hosts.sources, hosts.manager), (vec![list("b")], ManagerChoice::None));
}

#[test]
fn a_calibration_has_hosts_and_no_program() {
    let typed = |line: &str| match parse(OsStr::new("scela-run"), words(line), &no_file) {
        Ok(Typed::Calibrate(options)) => *options,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(typed("--calibrate a[1-4]").hosts.sources, [list("a[1-4]")]);
    let options = typed("-f h -launcher-exec s --calibrate a --batch 4 --calibrate=b");
    assert_eq!(options.hosts.sources, [list("b"), file("h")]);
    assert_eq!((options.launch.launcher_exec, options.launch.batch), (Some("s".into()), Some(4)));
    let hint = "try 'scela-run --calibrate node[01-04]'";
    check(&[
        ("--calibrate a ./a", "--calibrate runs no program, so './a' cannot be given", hint),
        ("--calibrate a -np 4", "option '-np' has no place in a calibration, which runs no program", hint),
        ("--demo --calibrate a", "option '--demo' has no place in a calibration, which runs no program", hint),
        (
            "--calibrate a -configfile f",
            "option '-configfile' has no place in a calibration, which runs no program",
            hint,
        ),
        (
            "--calibrate",
            "option '--calibrate' needs a value: --calibrate LIST",
            "name hosts: scela-run --calibrate 'node[001-032]'",
        ),
        (
            "--calibrate a --simulate 2x2",
            "options '--simulate' and '--calibrate' contradict each other: each is all that scela-run does",
            "leave '--simulate' or '--calibrate' out",
        ),
    ]);
}

#[test]
fn bad_values() {
    let tells = |option: &str| format!("'scela-run --help' describes the values of '{option}'");
    let empty = |option: &str| format!("a variable on the command line may be unset; {}", tells(option));
    let range = |option: &str, value: &str, bounds: &str| {
        format!("option '{option}': {value} is out of range, it must be {bounds}")
    };
    const BOOTSTRAPS: &str = "only auto, fork, ssh, slurm, pbs, lsf, sge, flux, exec:COMMAND";
    check(&[
        ("-f= ./a", "option '-f': the value is empty", &empty("-f")),
        ("-H= ./a", "option '-H': the value is empty", &empty("-H")),
        (
            "-rmk ll ./a",
            "option '-rmk': there is no resource manager 'll', only auto, none, slurm, pbs, lsf, sge, flux",
            &tells("-rmk"),
        ),
        (
            "--map-by board ./a",
            "option '--map-by': 'board' is not one of hwthread, core, l2cache, l3cache, numa, package, slot, node, comm, ppr:N:node",
            &tells("--map-by"),
        ),
        (
            "-launcher slrum ./a",
            &format!("option '-launcher': there is no bootstrap 'slrum', {BOOTSTRAPS}"),
            "did you mean 'slurm'?",
        ),
        (
            "-launcher manual ./a",
            &format!("option '-launcher': there is no bootstrap 'manual', {BOOTSTRAPS}"),
            "any command that reaches a host will do, as in -launcher 'exec:rsh {host}'",
        ),
        (
            "--bootstrap exec: ./a",
            "option '--bootstrap': 'exec:' has no command after its ':'",
            "write the command that reaches a host, as in --bootstrap 'exec:kubectl exec -i {host} --'",
        ),
        (
            "--launch tee ./a",
            "option '--launch': there is no shape of a launch 'tee', only auto, linear, flat, tree",
            "did you mean 'tree'?",
        ),
        ("--batch 0 ./a", &range("--batch", "0", "1 to 1,024"), "write '--batch 1', or leave '--batch' out"),
        (
            "--min-nodes 0 ./a",
            &range("--min-nodes", "0", "1 to 1,048,576"),
            "write '--min-nodes 1', or leave '--min-nodes' out",
        ),
        ("--spares -1 ./a", &range("--spares", "-1", "0 to 1,048,576"), "write '--spares 0', or leave '--spares' out"),
        (
            "--connect-back login:5000 ./a",
            "option '--connect-back': 'login:5000' is neither an IP address nor the name of a host",
            "write it without a port, as in '--connect-back 10.1.0.5'; '--port-range' is about ports",
        ),
        (
            "-iface 10.1.0.5 ./a",
            "option '-iface': '10.1.0.5' is not the name of a network interface",
            "'ip link' lists them, as in '-iface ib0'; '--connect-back' takes an address",
        ),
        (
            "--port-range 5000 ./a",
            "option '--port-range': '5000' is not a first port, a ':' and a last port",
            "write two ports, 1 to 65535, as in '--port-range 50000:50999'",
        ),
        (
            "--start-timeout 0 ./a",
            "option '--start-timeout': the time must be greater than 0",
            "leave '--start-timeout' out for the usual time",
        ),
    ]);
}

/// Whichever is typed first: the error names the later one first.
#[test]
fn conflicts() {
    for (one, other, why) in [
        ("--no-ports", "--port-range 1:2", "no process listens on a port"),
        ("--no-ports", "--connect-back login", "no process connects to an address"),
        ("--no-ports", "-iface ib0", "links use no interface of their own"),
        ("-rankmap 0,1", "--map-by slot", "each says which node a rank gets"),
        ("--map-by ppr:4:node", "-ppn 3", "each says how many ranks a node gets"),
        ("--map-by core:PE=2", "--cpus-per-rank 3", "each says how many cores a rank gets"),
        ("--bind-to core:2", "--cpus-per-rank 2", "each says how many cores a rank gets"),
        ("--bind-to hwthread:2", "--map-by core:PE=2", "each says how many cores a rank gets"),
        ("--bind-to user:0", "--map-by numa", "the list names the processors of each rank"),
        ("--bind-to user:0", "--cpus-per-rank 1", "the list names the processors of each rank"),
        ("-launcher fork", "-launcher-exec s", "agents of this machine are started by no other program"),
        ("--bootstrap exec:c", "-bootstrap-exec s", "each says which program reaches the hosts"),
        ("-f -", "-s all", "standard input cannot be hosts and input of ranks"),
        ("-f -", "-s 0", "standard input cannot be hosts and input of ranks"),
        ("-f -", "-f -", "standard input can be read once only"),
        ("--trace f.json", "--stats=f.json", "each writes a file of its own"),
        ("--profile-comm f.json", "--stats=f.json", "each writes a file of its own"),
        ("--profile-comm ./f.json", "--trace f.json", "each writes a file of its own"),
        ("--report f.json", "--trace f.json", "each writes a file of its own"),
        ("--trace d/f.json", "--stats=./d/./f.json", "each writes a file of its own"),
        ("--trace f.json", "--save-rankmap f.json", "each writes a file of its own"),
        ("--fault-history f", "--save-rankmap f", "each writes a file of its own"),
        ("--trace f.json", "-outfile-pattern ./f.json", "each writes a file of its own"),
        ("-errfile-pattern f.json", "--trace f.json", "each writes a file of its own"),
        ("-outfile-pattern f%r.json", "--trace ./f0.json", "each writes a file of its own"),
    ] {
        let name = |typed: &'static str| typed.split([' ', '=']).next().unwrap_or_default();
        for (first, second) in [(one, other), (other, one)] {
            let error = error_of(words(&format!("{first} {second} ./a")), &no_file);
            let (option, before) = (name(second), name(first));
            assert_eq!(error.to_string(), format!("options '{option}' and '{before}' contradict each other: {why}"));
            assert_eq!(error.hint(), format!("leave '{option}' or '{before}' out"));
        }
    }
    for (written, read) in [
        ("--save-rankmap ./f", "--map-by comm --comm-matrix f"),
        ("--profile-comm f", "--map-by comm --comm-matrix f"),
        ("--trace=f", "--map-by comm --comm-matrix m --topology f"),
        ("--stats=f", "-f f"),
        ("-outfile-pattern ./f", "-f g -f f"),
        ("-errfile-pattern %h", "-hostfile f"),
        ("--save-rankmap f", "-rankmap @./f"),
        ("--fault-history f", "-rankmap @f"),
        ("--trace=f", "-configfile f"),
        ("--trace=f", "--stage-file ./f"),
        ("--stats=./f", "--stage-file f=name --stage-file g"),
        ("-outfile-pattern f.%r", "--stage-file f.0"),
        ("--profile-comm f", "-s f"),
    ] {
        let option = written.split([' ', '=']).next().unwrap_or_default();
        let program = if read == "-configfile f" { "" } else { " ./a" };
        let reader = read.split(' ').rfind(|word| word.starts_with('-')).unwrap_or_default();
        for line in [format!("{written} {read}{program}"), format!("{read} {written}{program}")] {
            let error = error_of(words(&line), &|_| Ok(b"./a\n".to_vec()));
            assert_eq!(
                error.to_string(),
                format!("option '{option}' would overwrite the file of '{reader}'"),
                "{line}"
            );
            assert_eq!(error.hint(), format!("name another file for '{option}'"));
        }
    }
    for (line, program) in [
        ("--stats=p ./p", "./p"),
        ("--trace=d/p -wdir d ./p", "./p"),
        ("-np 1 ./a : --save-rankmap ./p -np 2 ./p", "./p"),
        ("-errfile-pattern p.%r ./p.12", "./p.12"),
        ("--trace=b -configfile f", "./b"),
    ] {
        let option =
            line.split([' ', '=']).find(|word| word.starts_with("--") || word.starts_with("-err")).unwrap_or_default();
        let error = error_of(words(line), &|_| Ok(b"./a\n./b\n".to_vec()));
        assert_eq!(error.to_string(), format!("option '{option}' would overwrite the program '{program}'"), "{line}");
        assert_eq!(error.hint(), format!("name another file for '{option}'"));
    }
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(at("f"), "").unwrap();
    std::fs::hard_link(at("f"), at("link")).unwrap();
    for (line, what) in [
        (format!("--stats={} {}", at("link"), at("f")), format!("the program '{}'", at("f"))),
        (format!("-outfile-pattern {} {}", at("link"), at("f")), format!("the program '{}'", at("f"))),
        (format!("--trace={} -f {} ./a", at("link"), at("f")), "the file of '-f'".to_owned()),
    ] {
        let error = error_of(words(&line), &no_file).to_string();
        assert!(error.ends_with(&format!(" would overwrite {what}")), "{line}: {error}");
    }
    let error = error_of(words(&format!("--trace={} --stats={} ./a", at("link"), at("f"))), &no_file);
    assert!(error.to_string().ends_with("each writes a file of its own"), "{error}");
    let error = error_of(words("--no-ports -configfile f"), &|_| Ok(b"./a\n--iface ib0 ./b\n".to_vec()));
    let why = "links use no interface of their own";
    assert_eq!(error.to_string(), format!("options '--no-ports' and '--iface' contradict each other: {why}"));
}

#[test]
fn reports_are_not_written_into_staged_directories() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().canonicalize().unwrap();
    for directory in ["project/out", "project2"] {
        std::fs::create_dir_all(path.join(directory)).unwrap();
    }
    std::os::unix::fs::symlink(path.join("project"), path.join("link")).unwrap();
    std::os::unix::fs::symlink(path.join("project/trace"), path.join("to-trace")).unwrap();
    std::os::unix::fs::symlink(path.join("outside"), path.join("project/outwards")).unwrap();
    let line = |staged: &str, report: &str| {
        let at = |name: &str| path.join(name).display().to_string();
        let (option, file) = report.split_once('=').unwrap();
        words(&format!("--stage-dir {} {option}={} ./a", at(staged), at(file)))
    };
    for (staged, report) in [
        ("project", "--trace=project/trace"),
        ("project", "--stats=project/out/../out/stats.json"),
        ("project/out", "--profile-comm=link/out/new"),
        ("link", "--save-rankmap=project/map"),
        ("link", "--trace=to-trace"),
        ("project2 --stage-dir {}/project", "--fault-history=project/history"),
    ] {
        let staged = staged.replace("{}", &path.display().to_string());
        let error = error_of(line(&staged, report), &no_file);
        let (option, directory) =
            (report.split('=').next().unwrap(), if staged.ends_with("out") { "/out" } else { "" });
        let directory = format!("{}/project{directory}", path.display());
        let text = format!("option '{option}' would write into '{directory}', which every node gets (--stage-dir)");
        assert_eq!(error.to_string(), text, "{staged} {report}");
        assert_eq!(error.hint(), format!("name a file for '{option}' outside this directory"));
    }
    for (staged, report) in [
        ("project2", "--trace=project/trace"),
        ("project/out", "--trace=project/trace"),
        ("project", "--trace=project2"),
        ("project", "--trace=project/outwards"),
        // It is written once all nodes have the directory.
        ("project", "-outfile-pattern=project/out/%r"),
        ("missing", "--trace=missing/trace"),
    ] {
        request_of(line(staged, report), &no_file);
    }
}

#[test]
fn options_without_conflict() {
    for line in [
        "--map-by ppr:4:node -ppn 4",
        "--map-by node -ppn 1",
        "--map-by core:PE=2 --cpus-per-rank 2 --bind-to core",
        "--bind-to numa:2 --cpus-per-rank 2",
        "--bind-to user:0 --map-by node",
        "-launcher fork -launcher ssh -launcher-exec s",
        "-launcher slurm -launcher-exec s",
        "-f - -s none",
        "--trace f.json --stats",
        "--trace f.json --stats=g/f.json",
        "--trace=a -wdir d",
        "--trace=/dev/null -s /dev/null",
        "--trace=f --stage-file g=f",
        "-outfile-pattern %h -errfile-pattern %j --stage-file f -s g",
        "-f - -s input",
        "-f h -s all",
        "--connect-back a --iface b --port-range 1:2",
        "--launch flat --fanout 8",
        "--rm none --bootstrap slurm",
    ] {
        options(line);
    }
}
