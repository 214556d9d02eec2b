//! `scela comm`: what ranks have sent to each other, from a file of `--profile-comm`, of Open MPI, or a plain matrix.
//!
//! - `heat_map`: the matrix in bins, with a colour for each.
//! - `layout`: the picture: the bins, the axes, the scale and the borders of nodes at their places.
//! - `svg`, `png`: the picture in a file; `font` has the characters of the latter.
//! - `nodes`: the traffic between nodes for a placement.
//! - `summary`: the text.

mod font;
mod heat_map;
mod layout;
mod nodes;
mod png;
mod summary;
mod svg;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use clap::{Arg, Command, value_parser};
use nla::core::printable;
use nla::sys::{Rewrite, is_one_file, open_regular, true_path};
use placement::matrix::{Collector, Matrix};

use self::heat_map::HeatMap;
use self::layout::Picture;
use self::nodes::NodeMap;
use crate::refusal::Refusal;

/// The most files of one matrix: Open MPI writes one for each rank.
const FILES_MAX: usize = 65_536;

/// The numbers that the picture and the lists show.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Measure {
    #[default]
    Bytes,
    Messages,
}

/// The words of `scela comm show`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Options {
    files: Vec<PathBuf>,
    measure: Measure,
    svg: Option<PathBuf>,
    png: Option<PathBuf>,
    rankmap: Option<String>,
    hosts: Option<OsString>,
    top: usize,
}

const AFTER_HELP: &str = "\
FILE is one of 'scela-run --profile-comm', one or more F.RANK.prof of Open MPI's pml_monitoring, or a plain
matrix: N lines of N numbers of bytes, or lines FROM TO BYTES [MESSAGES]. Three lines of three numbers, and four
of four, must have 0 on the diagonal: they are N lines of N numbers.

Without --rankmap and --hosts, the traffic between nodes is that of the job, if FILE says on which nodes its
ranks were.";

/// Returns the commands as clap describes them.
pub fn command() -> Command {
    let path = |name: &'static str| Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf));
    let show = Command::new("show")
        .about("Shows a communication profile: a summary, a heat map, the traffic between nodes")
        .after_help(AFTER_HELP)
        .arg(
            Arg::new("files")
                .value_name("FILE")
                .required(true)
                .num_args(1..=FILES_MAX)
                .value_parser(value_parser!(PathBuf))
                .help("the profile"),
        )
        .arg(path("svg").help("draw the heat map to FILE as SVG"))
        .arg(path("png").help("draw the heat map to FILE as PNG"))
        .arg(
            Arg::new("by")
                .long("by")
                .value_name("WHAT")
                .value_parser(["bytes", "messages"])
                .default_value("bytes")
                .help("what the heat map and the lists show"),
        )
        .arg(
            Arg::new("rankmap")
                .long("rankmap")
                .value_name("MAP")
                .help("the node of each rank, as for scela-run: 0,0,1,1, (vector,(0,4,2)), or @FILE of --save-rankmap"),
        )
        .arg(
            Arg::new("hosts")
                .long("hosts")
                .value_name("LIST")
                .value_parser(value_parser!(OsString))
                .help("the hosts, filled in their order: node[1-4]:8; with --rankmap, their names"),
        )
        .arg(
            Arg::new("top")
                .long("top")
                .value_name("N")
                .value_parser(value_parser!(u16))
                .default_value("10")
                .help("how many of the heaviest pairs to list"),
        );
    Command::new("comm")
        .about("Shows what ranks have sent to each other")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(show)
}

/// Does what the words after `scela comm` say, which begin with `comm`. Returns the text for standard output. The outer error is
/// a mistake in the words.
pub fn run(words: impl IntoIterator<Item = OsString>) -> Result<Result<String, Refusal>, String> {
    let command = command().name("scela comm").bin_name("scela comm");
    match command.try_get_matches_from(words) {
        Ok(matches) => {
            let given = matches.subcommand_matches("show");
            Ok(given.map_or_else(|| Ok(String::new()), |given| show(&options(given))))
        }
        Err(error) if error.use_stderr() => {
            let text = error.render().to_string();
            Err(text.trim().trim_start_matches("error: ").to_owned())
        }
        Err(text) => Ok(Ok(format!("{}\n", text.render().to_string().trim_end()))),
    }
}

fn options(given: &clap::ArgMatches) -> Options {
    Options {
        files: given.get_many("files").into_iter().flatten().cloned().collect(),
        measure: match given.get_one::<String>("by").map(String::as_str) {
            Some("messages") => Measure::Messages,
            _ => Measure::Bytes,
        },
        svg: given.get_one("svg").cloned(),
        png: given.get_one("png").cloned(),
        rankmap: given.get_one("rankmap").cloned(),
        hosts: given.get_one("hosts").cloned(),
        top: given.get_one::<u16>("top").copied().unwrap_or(10).into(),
    }
}

/// Checks that a picture replaces neither what is read nor the other picture.
fn check_pictures(options: &Options) -> Result<(), Refusal> {
    let pictures = [("--svg", &options.svg), ("--png", &options.png)];
    let rankmap = options.rankmap.as_deref().and_then(|text| text.strip_prefix('@')).map(Path::new);
    let mut taken: Vec<PathBuf> = options.files.iter().map(PathBuf::as_path).chain(rankmap).map(true_path).collect();
    for (option, picture) in pictures.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?))) {
        if picture.as_os_str() == "-" {
            let text = format!("option '{option}': '-' is no file: standard output has the summary");
            return Err(Refusal::new(text, "name a file, or ./- for one of this name"));
        }
        let path = true_path(picture);
        if taken.iter().any(|taken| is_one_file(taken, &path)) {
            let text = format!("option '{option}': '{}' is also read, or is the other picture", picture.display());
            return Err(Refusal::new(text, "name a file of its own"));
        }
        taken.push(path);
    }
    Ok(())
}

fn show(options: &Options) -> Result<String, Refusal> {
    check_pictures(options)?;
    let matrix = read(&options.files)?;
    let map = NodeMap::of(&matrix, options.rankmap.as_deref(), options.hosts.as_deref())?;
    if let Some(path) = &options.svg {
        let bins = HeatMap::new(&matrix, options.measure, svg::BINS_MAX);
        write(path, svg::draw(&Picture::new(&bins, map.as_ref())).as_bytes())?;
    }
    if let Some(path) = &options.png {
        let bins = HeatMap::new(&matrix, options.measure, png::BINS_MAX);
        let bytes =
            png::draw(&Picture::new(&bins, map.as_ref())).map_err(|error| cannot_write(path, &error.to_string()))?;
        write(path, &bytes)?;
    }
    Ok(summary::text(&matrix, map.as_ref(), options.measure, options.top))
}

/// Reads one matrix, or the files of Open MPI's ranks.
fn read(files: &[PathBuf]) -> Result<Matrix, Refusal> {
    let cannot = |path: &Path, why: &str| {
        Refusal::new(
            format!("'{}' cannot be read: {why}", path.display()),
            "name a file of --profile-comm, of Open MPI's pml_monitoring, or a plain matrix",
        )
    };
    let open = |path: &Path| {
        let file = open_regular(path).map_err(|error| cannot(path, &error.to_string()))?;
        Ok::<_, Refusal>(BufReader::new(file))
    };
    if let [path] = files {
        return Matrix::read_any(open(path)?).map_err(|error| cannot(path, &error.to_string()));
    }
    let mut all = Collector::default();
    for path in files {
        let mut file = open(path)?;
        let is_other = file.fill_buf().is_ok_and(|start| start.starts_with(b"scela-comm"));
        if is_other {
            return Err(cannot(path, "only files of Open MPI's pml_monitoring can be put together"));
        }
        all.read_open_mpi(file).map_err(|error| cannot(path, &error.to_string()))?;
    }
    Ok(all.finish())
}

fn cannot_write(path: &Path, why: &str) -> Refusal {
    Refusal::new(format!("'{}' cannot be written: {why}", path.display()), "name a file in a directory of yours")
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Refusal> {
    let written = Rewrite::open(path).and_then(|file| file.write(|out| out.write_all(bytes)));
    written.map_err(|error| cannot_write(path, &error.to_string()))
}

/// Returns a number of bytes for people: `1.5 MiB`.
fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10).min(6) as usize;
    let value = bytes as f64 / 1024_f64.powi(unit as i32);
    format!("{value:.1} {}", UNITS[unit - 1])
}

/// Returns a line of a file, fit for a terminal.
fn shown_line(text: &str) -> String {
    printable(text).to_string()
}

#[cfg(test)]
mod tests;
