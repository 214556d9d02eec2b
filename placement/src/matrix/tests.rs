//! Matrices on example files.

use super::*;

fn sum(matrix: &Matrix) -> Vec<(u32, u32, u64, u64)> {
    matrix.pairs().iter().map(|pair| (pair.from, pair.to, pair.traffic.bytes, pair.traffic.messages)).collect()
}

#[track_caller]
fn check(text: &str, ranks: u32, expected: &[(u32, u32, u64, u64)]) {
    let matrix = Matrix::read_any(text.as_bytes()).unwrap();
    assert_eq!((matrix.ranks(), sum(&matrix)), (ranks, expected.to_vec()), "{text}");
}

#[track_caller]
fn check_error(text: &str, expected: &str) {
    let error = Matrix::read_any(text.as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), format!("line {expected}"), "{text}");
}

#[test]
fn a_file_in_our_format_is_read() {
    check("scela-comm 1 ranks 4 pairs 0\n", 4, &[]);
    check("scela-comm 1 ranks 3 pairs 3\n# a remark\n2 0 5 1\r\n\n0 1 7 2\n0 1 1 1", 3, &[(0, 1, 8, 3), (2, 0, 5, 1)]);
    let matrix = Matrix::read("scela-comm 1 ranks 1 pairs 0\n#  by \t hand \n".as_bytes()).unwrap();
    assert_eq!(matrix.remarks(), ["by   hand"]);
}

#[test]
fn errors_name_the_line() {
    let matrix = "of the communication matrix:";
    for text in ["", "# nothing\n\n"] {
        assert_eq!(Matrix::read_any(text.as_bytes()).unwrap_err().to_string(), "the communication matrix is empty");
    }
    check_error("scela-comm 1 ranks x", &format!("1 {matrix} the first line must be 'scela-comm 1 ranks N pairs N'"));
    check_error(
        "scela-comm 2 ranks 1 pairs 0",
        &format!("1 {matrix} the file has version 2 of the format, and this program reads version 1"),
    );
    check_error("scela-comm 1 ranks 2 pairs 2\n0 1 1 1\n", &format!("2 {matrix} the file ends after 1 of 2 pairs"));
    check_error(
        "scela-comm 1 ranks 2 pairs 1\n0 1 1 1\n1 0 1 1",
        &format!("3 {matrix} the file has more pairs than the 1 of its first line"),
    );
    check_error("scela-comm 1 ranks 2 pairs 1\n0 2 1 1\n", &format!("2 {matrix} rank 2 is beyond the 2 ranks"));
    let pair = "a line must be FROM TO BYTES MESSAGES, all whole numbers";
    for line in ["0 1 1", "0 1 1 1 1", "0 1 -1 1", "0 1 1 18446744073709551616", "a"] {
        check_error(&format!("scela-comm 1 ranks 2 pairs 1\n{line}\n"), &format!("2 {matrix} {pair}"));
    }
    check_error("scela-comm 1 ranks 1048577 pairs 0", &format!("1 {matrix} the matrix has more than 1048576 ranks"));
    let long = "1 ".repeat(1 << 20);
    check_error(&long, &format!("1 {matrix} the line is longer than 1024 KiB"));
    let error = Matrix::read_any(&b"1 2\n\xff 1\n"[..]).unwrap_err();
    assert_eq!(error.to_string(), format!("line 2 {matrix} the line is not text in UTF-8"));
}

#[test]
fn files_of_open_mpi_are_read() {
    let text = "# POINT TO POINT\nE\t0\t1\t100 bytes\t2 msgs sent\t1,1,0\nI\t0\t1\t8 bytes\t1 msgs sent\n\
                # OSC\nS\t0\t2\t5 bytes\t1 msgs sent\nR\t0\t2\t6 bytes\t1 msgs sent\n\
                # COLLECTIVES\nD\tMPI_COMM_WORLD\tprocs: 0,1,2\nO2A\t0\t900 bytes\t1 msgs sent\n";
    check(text, 3, &[(0, 1, 108, 3), (0, 2, 5, 1), (2, 0, 6, 1)]);
    check_error(
        "E\t0\t1\t100\t2\n",
        "1 of the communication matrix: the line must be 'E FROM TO BYTES bytes MESSAGES msgs sent'",
    );
    let mut both = Collector::default();
    both.read_open_mpi(&b"E\t1\t0\t4 bytes\t1 msgs sent\n"[..]).unwrap();
    both.read_open_mpi(&b"E\t0\t1\t3 bytes\t1 msgs sent\n"[..]).unwrap();
    assert_eq!(sum(&both.finish()), [(0, 1, 3, 1), (1, 0, 4, 1)]);
}

#[test]
fn plain_matrices_are_read() {
    check("0 5\n7 0\n", 2, &[(0, 1, 5, 1), (1, 0, 7, 1)]);
    check("% generated\n0,5\n7,0\n", 2, &[(0, 1, 5, 1), (1, 0, 7, 1)]);
    check("0 1 5\n1 0 7\n", 2, &[(0, 1, 5, 1), (1, 0, 7, 1)]);
    check("0 1 5 2\n", 2, &[(0, 1, 5, 2)]);
    check("0 1 5\n1 0 7\n2 0 0\n", 3, &[(0, 1, 1, 1), (0, 2, 5, 1), (1, 0, 1, 1), (1, 2, 7, 1), (2, 0, 2, 1)]);
    check("0 1 5\n1 0 7\n2 0 9\n0 1 1\n", 3, &[(0, 1, 6, 2), (1, 0, 7, 1), (2, 0, 9, 1)]);
    let matrix = "of the communication matrix:";
    check("0 0 0 1\n0 0 2 0\n0 3 0 0\n4 0 0 0\n", 4, &[(0, 3, 1, 1), (1, 2, 2, 1), (2, 1, 3, 1), (3, 0, 4, 1)]);
    let more = ", and add a number of messages to each line";
    for (text, number, more) in
        [("0 1 100\n1 2 100\n2 0 100\n", 3, more), ("0 1 5 1\n1 2 5 1\n2 3 5 1\n3 0 5 1\n", 4, "")]
    {
        check_error(
            text,
            &format!(
                "{number} {matrix} {number} lines of {number} numbers are a full matrix only if its diagonal is 0; before lines FROM \
                 TO BYTES MESSAGES, write 'scela-comm 1 ranks N pairs {number}'{more}"
            ),
        );
    }
    check("scela-comm 1 ranks 3 pairs 3\n0 1 5 1\n1 2 5 1\n2 0 5 1\n", 3, &[(0, 1, 5, 1), (1, 2, 5, 1), (2, 0, 5, 1)]);
    check_error("0 5\n7 0\n1 1\n", &format!("3 {matrix} the matrix must be square, and is 3 x 2"));
    check_error("0 0 0 0 0\n", &format!("1 {matrix} the matrix must be square, and is 1 x 5"));
    check_error("0 5\n7\n", &format!("2 {matrix} a line must have as many numbers as the first one: 2, not 1"));
    check_error(
        "a b\n",
        &format!("1 {matrix} a plain matrix has whole numbers of bytes, separated by blanks or commas"),
    );
    check_error("0 4294967296 1\n", &format!("1 {matrix} the matrix has more than 1048576 ranks"));
}

#[test]
fn remarks_are_bounded() {
    let mut matrix = Matrix::default();
    (0..100).for_each(|_| matrix.add_remark(&"ä".repeat(300)));
    assert_eq!((matrix.remarks().len(), matrix.remarks()[0].len()), (MATRIX_REMARKS_MAX, MATRIX_REMARK_BYTES_MAX));
}

#[test]
fn sums_stop_at_the_largest_number() {
    let mut collector = Collector::new(2).unwrap();
    let most = Traffic { bytes: u64::MAX, messages: 1 };
    (0..3).for_each(|_| collector.add(0, 1, most).unwrap());
    assert_eq!(collector.finish().traffic(0, 1), Traffic { bytes: u64::MAX, messages: 3 });
}

mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(pairs in vec((0u32..40, 0u32..40, any::<u32>(), 0u64..9), 0..300)) {
            let mut collector = Collector::new(3).unwrap();
            let mut expected = std::collections::BTreeMap::<(u32, u32), Traffic>::new();
            for &(from, to, bytes, messages) in &pairs {
                let traffic = Traffic { bytes: bytes.into(), messages };
                collector.add(from, to, traffic).unwrap();
                if !traffic.is_zero() {
                    expected.entry((from, to)).or_default().add(traffic);
                }
            }
            let matrix = collector.finish();
            let found: Vec<_> = matrix.pairs().iter().map(|pair| ((pair.from, pair.to), pair.traffic)).collect();
            prop_assert_eq!(&found, &expected.into_iter().collect::<Vec<_>>());
            for (at, traffic) in &found {
                prop_assert_eq!(matrix.traffic(at.0, at.1), *traffic);
            }
            prop_assert_eq!((0..40).flat_map(|from| matrix.row(from)).count(), found.len());
            let mut file = Vec::new();
            matrix.write(&mut file).unwrap();
            prop_assert_eq!(&Matrix::read(&file[..]).unwrap(), &matrix);
            prop_assert_eq!(&Matrix::read_any(&file[..]).unwrap(), &matrix);
            let mut merged = Collector::default();
            merged.merge(&matrix, 0).unwrap();
            prop_assert_eq!(merged.finish(), matrix);
        }

        #[test]
        fn no_text_panics(text in "(scela-comm 1 ranks [0-9]{1,7} pairs [0-9]\n)?([0-9EISR#,\t \n]|bytes|msgs){0,60}") {
            let _ = Matrix::read_any(text.as_bytes());
        }
    }
}
