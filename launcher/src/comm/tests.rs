//! Profiles of example jobs.

use std::fs;

use placement::matrix::Traffic;

use super::heat_map::{SHADES, colour};
use super::*;

/// A ring of `ranks` ranks: each sends 1,000 bytes in 2 messages to the next one.
fn ring(ranks: u32) -> Matrix {
    let mut all = Collector::new(ranks).unwrap();
    (0..ranks).for_each(|rank| all.add(rank, (rank + 1) % ranks, Traffic { bytes: 1000, messages: 2 }).unwrap());
    all.finish()
}

fn words(line: &str) -> Vec<OsString> {
    std::iter::once("comm").chain(line.split_ascii_whitespace()).map(OsString::from).collect()
}

/// Runs `scela comm` on a file with this content, whose name replaces FILE.
fn run_on(content: &[u8], line: &str) -> Result<String, String> {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("a.comm");
    fs::write(&file, content).unwrap();
    let line = line.replace("FILE", file.to_str().unwrap());
    let name = |text: String| text.replace(file.to_str().unwrap(), "FILE");
    run(words(&line)).unwrap().map_err(|refusal| name(refusal.to_string()))
}

fn file_of(matrix: &Matrix) -> Vec<u8> {
    let mut bytes = Vec::new();
    matrix.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_summary_has_all_numbers() {
    let mut matrix = ring(4);
    matrix.add_remark("mapping: (vector,(0,2,2))");
    let expected = "\
4 ranks, 3.9 KiB in 8 messages
  mapping: (vector,(0,2,2))
mean message      500 B
receivers of one  1.0 on average, 1 at most (rank 0)
heaviest pairs
  0 -> 1              1000 B in 2 messages, 25.0 %
  1 -> 2              1000 B in 2 messages, 25.0 %
2 nodes, where the job ran
  inside nodes    50.0 % of bytes, 50.0 % of messages
  between nodes   2.0 KiB in 4 messages
  node 0 -> node 1         1000 B in 2 messages
  node 1 -> node 0         1000 B in 2 messages
";
    assert_eq!(run_on(&file_of(&matrix), "show FILE --top 2").as_deref(), Ok(expected));
}

#[test]
fn a_typed_placement_wins() {
    let mut matrix = ring(4);
    matrix.add_remark("mapping: (vector,(0,2,2))");
    let file = file_of(&matrix);
    let inside = |line: &str| {
        let text = run_on(&file, line)?;
        let line = text.lines().find(|line| line.contains("inside nodes")).unwrap_or_default();
        Ok::<_, String>(line.trim().split_ascii_whitespace().nth(2).unwrap_or_default().to_owned())
    };
    assert_eq!(inside("show FILE --rankmap 0,1,0,1").as_deref(), Ok("0.0"));
    assert_eq!(inside("show FILE --hosts a:3,b:1").as_deref(), Ok("50.0"));
    assert_eq!(inside("show FILE --hosts a:4").as_deref(), Ok("100.0"));
    let text = run_on(&file, "show FILE --hosts left,right --rankmap 0,0,1,1").unwrap();
    assert!(text.contains("left -> right") && text.contains("2 nodes, by --rankmap"), "{text}");
    for (line, error) in [
        ("show FILE --rankmap 0,1", "the rank map has 2 ranks, and the profile 4"),
        ("show FILE --rankmap 0,0,0,2 --hosts a,b", "the rank map names node 2, and --hosts has 2 hosts"),
        ("show FILE --rankmap x", "the rank map has 'x' where the number of a node must be"),
    ] {
        assert_eq!(run_on(&file, line), Err(error.to_owned()));
    }
}

/// A remark is a text of any program.
#[test]
fn a_mapping_that_does_not_fit_means_nothing() {
    for remark in ["mapping: (vector,(0,2,1))", "mapping: x", "mapping: (vector,(0,4294967295,4294967295))"] {
        let mut matrix = ring(4);
        matrix.add_remark(remark);
        assert!(!run_on(&file_of(&matrix), "show FILE").unwrap().contains("inside nodes"), "{remark}");
    }
}

#[test]
fn profiles_of_others_are_read() {
    let text = run_on(b"0 5\n7 0\n", "show FILE").unwrap();
    assert!(text.starts_with("2 ranks, 12 B in 2 messages\n"), "{text}");
    let (one, other) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    fs::write(&one, "E\t0\t1\t3 bytes\t1 msgs sent\n").unwrap();
    fs::write(&other, "E\t1\t0\t4 bytes\t1 msgs sent\n").unwrap();
    let line = format!("show {} {}", one.path().display(), other.path().display());
    assert!(run(words(&line)).unwrap().unwrap().starts_with("2 ranks, 7 B in 2 messages\n"));
    fs::write(&other, file_of(&ring(3))).unwrap();
    let error = run(words(&line)).unwrap().unwrap_err().to_string();
    assert!(error.ends_with("only files of Open MPI's pml_monitoring can be put together"), "{error}");
}

#[test]
fn what_cannot_be_shown_is_an_error() {
    let line = "'FILE' cannot be read: line 1 of the communication matrix: a plain matrix has whole numbers of bytes, \
                separated by blanks or commas";
    assert_eq!(run_on(b"hello\n", "show FILE"), Err(line.to_owned()));
    let missing = run(words("show /nonexistent")).unwrap().unwrap_err().to_string();
    assert!(missing.starts_with("'/nonexistent' cannot be read: No such file"), "{missing}");
    for line in ["show", "show a --by colour", "draw a", ""] {
        assert!(run(words(line)).is_err(), "{line}");
    }
    let unwritable = run_on(&file_of(&ring(2)), "show FILE --svg /nonexistent/a.svg").unwrap_err();
    assert!(unwritable.starts_with("'/nonexistent/a.svg' cannot be written: "), "{unwritable}");
}

#[test]
fn pictures_are_bounded_and_show_each_bin() {
    let matrix = ring(5000);
    let map = HeatMap::new(&matrix, Measure::Bytes, svg::BINS_MAX);
    assert_eq!((map.per_bin, map.side), (40, 125));
    assert_eq!((map.sum(0, 0), map.sum(0, 1), map.sum(124, 0), map.sum(1, 0)), (39_000, 1000, 1000, 0));
    assert_eq!((map.shade(0, 0), map.shade(0, 1), map.shade(1, 0)), (Some(SHADES - 1), Some(0), None));
    assert_eq!((map.value_of(0), map.value_of(SHADES - 1)), (1000, 39_000));
    let picture = svg::draw(&map, None);
    // Two bins in each row, the frame, the background and the scale.
    assert_eq!(picture.matches("<rect").count(), 2 * 125 + 2 + 32);
    assert!(picture.contains("5000 ranks, 40 x 40 ranks in a square") && picture.ends_with("</svg>\n"));
    let messages = HeatMap::new(&matrix, Measure::Messages, 1);
    assert_eq!((messages.side, messages.sum(0, 0)), (1, 10_000));
}

#[test]
fn nodes_are_drawn_as_lines() {
    let matrix = ring(4);
    let nodes = NodeMap::of(&matrix, Some("0,0,1,1"), None).unwrap();
    let picture = svg::draw(&HeatMap::new(&matrix, Measure::Bytes, 128), nodes.as_ref());
    assert_eq!(picture.matches("<path").count(), 1);
    assert!(picture.contains("M320.00 40"), "in the middle: {picture}");
}

#[test]
fn a_png_has_a_pixel_for_each_bin() {
    for (matrix, side) in [(ring(2), 512), (ring(600), 600), (ring(3000), 1000), (Matrix::default(), 512)] {
        let map = HeatMap::new(&matrix, Measure::Bytes, png::BINS_MAX);
        let bytes = png::draw(&map).unwrap();
        let decoder = ::png::Decoder::new(std::io::Cursor::new(&bytes));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (side, side));
        if matrix.ranks() == 2 {
            // Rank 0 sends to rank 1, in the upper right quarter.
            let at = |x: usize, y: usize| pixels[y * side as usize + x] > 0;
            assert_eq!([at(0, 0), at(511, 0), at(0, 511), at(511, 511)], [false, true, true, false]);
        }
    }
}

#[test]
fn more_is_darker() {
    let light = |shade| colour(shade).map(u32::from).iter().sum::<u32>();
    assert!((1..SHADES).all(|shade| light(shade) <= light(shade - 1)));
}

#[test]
fn sizes_have_units() {
    for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (u64::MAX, "16.0 EiB")]
    {
        assert_eq!(size_text(bytes), text);
    }
}
