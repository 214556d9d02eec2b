//! The messages of collective operations, by the algorithm that is named for each.
//!
//! MPI libraries choose among many algorithms at run time, so a profile of collective operations is an assumption. Each function
//! calls `send` with the receiver, by its rank in the communicator, and the bytes of each message that `rank` sends.
//! Between the groups of an intercommunicator all operations are [`linear`].

/// Takes the receiver and the bytes of a message.
pub trait Send: FnMut(u32, u64) {}

impl<F: FnMut(u32, u64)> Send for F {}

/// A group of ranks, and this process's rank in it.
#[derive(Copy, Clone, Debug)]
pub struct Group {
    /// The number of ranks.
    pub size: u32,
    /// This process's rank.
    pub rank: u32,
}

impl Group {
    fn after(self, distance: u32) -> u32 {
        ((u64::from(self.rank) + u64::from(distance)) % u64::from(self.size)) as u32
    }

    /// This rank's number if ranks are counted from `root` on.
    fn relative(self, root: u32) -> u32 {
        (self.rank + (self.size - root)) % self.size
    }

    /// The rank with this number if ranks are counted from `root` on.
    fn absolute(self, root: u32, relative: u32) -> u32 {
        ((u64::from(root) + u64::from(relative)) % u64::from(self.size)) as u32
    }

    /// The powers of two below the size.
    fn rounds(self) -> impl Iterator<Item = u32> {
        let size = self.size;
        (0..32).map(|round| 1_u32 << round).take_while(move |distance| *distance < size)
    }
}

/// Barrier: dissemination. In round k each rank sends an empty message to the rank 2^k after it.
pub fn dissemination(group: Group, mut send: impl Send) {
    group.rounds().for_each(|distance| send(group.after(distance), 0));
}

/// Broadcast: a binomial tree from the root.
pub fn binomial_broadcast(group: Group, root: u32, bytes: u64, send: impl Send) {
    binomial_children(group, root, |_| bytes, send);
}

/// Reduce: a binomial tree to the root.
pub fn binomial_reduce(group: Group, root: u32, bytes: u64, mut send: impl Send) {
    if let Some((parent, _)) = binomial_parent(group, root) {
        send(parent, bytes);
    }
}

/// Gather: a binomial tree to the root; a rank sends the blocks of its subtree in one message.
pub fn binomial_gather(group: Group, root: u32, block_bytes: u64, mut send: impl Send) {
    if let Some((parent, blocks)) = binomial_parent(group, root) {
        send(parent, block_bytes.saturating_mul(u64::from(blocks)));
    }
}

/// Scatter: a binomial tree from the root; a rank gets the blocks of its subtree in one message.
pub fn binomial_scatter(group: Group, root: u32, block_bytes: u64, send: impl Send) {
    binomial_children(group, root, |blocks| block_bytes.saturating_mul(u64::from(blocks)), send);
}

/// Sends to each child, the one with the largest subtree first. `bytes` takes the number of ranks in the child's subtree.
fn binomial_children(group: Group, root: u32, bytes: impl Fn(u32) -> u64, mut send: impl Send) {
    let here = group.relative(root);
    let is_child = |distance: &u32| here & ((distance << 1) - 1) == 0 && here + distance < group.size;
    let mut distances: Vec<u32> = group.rounds().filter(is_child).collect();
    distances.reverse();
    for distance in distances {
        let subtree = distance.min(group.size - here - distance);
        send(group.absolute(root, here + distance), bytes(subtree));
    }
}

/// Returns the parent and the number of ranks in the subtree of this rank; `None` at the root.
fn binomial_parent(group: Group, root: u32) -> Option<(u32, u32)> {
    let here = group.relative(root);
    let distance = 1_u32.checked_shl(here.trailing_zeros()).filter(|_| here > 0)?;
    Some((group.absolute(root, here - distance), distance.min(group.size - here)))
}

/// Allreduce: recursive doubling. If the size is no power of two, the first ranks are paired: the even one of a pair sends its
/// data to the odd one before, and gets the result after.
pub fn recursive_doubling(group: Group, bytes: u64, mut send: impl Send) {
    let Group { size, rank } = group;
    let power = if size == 0 { return } else { 1_u32 << size.ilog2() };
    let paired = 2 * (size - power);
    let number = if rank >= paired {
        rank - paired / 2
    } else if rank.is_multiple_of(2) {
        return send(rank + 1, bytes);
    } else {
        rank / 2
    };
    let rank_of = |number: u32| if number < paired / 2 { 2 * number + 1 } else { number + paired / 2 };
    (0..power.ilog2()).for_each(|round| send(rank_of(number ^ 1 << round), bytes));
    if rank < paired {
        send(rank - 1, bytes);
    }
}

/// Scan and exscan: in round k each rank sends to the rank 2^k after it, if there is one.
pub fn scan(group: Group, bytes: u64, mut send: impl Send) {
    let exists = |distance: &u32| u64::from(group.rank) + u64::from(*distance) < u64::from(group.size);
    group.rounds().take_while(exists).for_each(|distance| send(group.rank + distance, bytes));
}

/// Allgather and allgatherv: a ring. In each round a rank passes a block to the next rank, its own first. `block_bytes` takes
/// the rank that a block is from.
pub fn ring(group: Group, block_bytes: impl Fn(u32) -> u64, mut send: impl Send) {
    for round in 1..group.size {
        let from = (u64::from(group.rank) + 1 + u64::from(group.size - round)) % u64::from(group.size);
        send(group.after(1), block_bytes(from as u32));
    }
}

/// Alltoall, alltoallv, alltoallw and reduce_scatter: each rank sends to each other one directly. `bytes` takes the receiver.
pub fn pairwise(group: Group, bytes: impl Fn(u32) -> u64, mut send: impl Send) {
    for distance in 1..group.size {
        let to = group.after(distance);
        send(to, bytes(to));
    }
}

/// Gatherv, scatterv, and all operations between two groups: the sender of a block sends it to its receiver directly. `to` are
/// the receivers of this rank.
pub fn linear(to: impl Iterator<Item = u32>, bytes: impl Fn(u32) -> u64, mut send: impl Send) {
    to.for_each(|to| send(to, bytes(to)));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Matrix = BTreeMap<(u32, u32), Vec<u64>>;

    /// Returns the messages between all ranks.
    fn all(size: u32, schedule: impl Fn(Group, &mut dyn FnMut(u32, u64))) -> Matrix {
        let mut matrix = Matrix::new();
        for rank in 0..size {
            let mut send = |to, bytes| {
                assert!(to < size && to != rank, "{rank} of {size} sends to {to}");
                matrix.entry((rank, to)).or_default().push(bytes);
            };
            schedule(Group { size, rank }, &mut send);
        }
        matrix
    }

    fn pairs(matrix: &Matrix) -> Vec<(u32, u32, u64)> {
        matrix.iter().map(|(&(from, to), bytes)| (from, to, bytes.iter().sum())).collect()
    }

    /// Table 5.2 of the publication that the mapping by profiles comes from: a broadcast among 8 ranks.
    #[test]
    fn a_broadcast_is_a_binomial_tree() {
        let found = all(8, |group, send| binomial_broadcast(group, 0, 5, send));
        let tree = [(0, 1), (0, 2), (0, 4), (2, 3), (4, 5), (4, 6), (6, 7)];
        assert_eq!(pairs(&found), tree.map(|(from, to)| (from, to, 5)));
        let found = all(3, |group, send| binomial_broadcast(group, 2, 5, send));
        assert_eq!(pairs(&found), [(2, 0, 5), (2, 1, 5)]);
    }

    #[test]
    fn data_reaches_each_rank_once_from_any_root() {
        for size in 1..20 {
            for root in 0..size {
                let broadcast = all(size, |group, send| binomial_broadcast(group, root, 1, send));
                let mut receivers: Vec<u32> = broadcast.keys().map(|(_, to)| *to).collect();
                receivers.sort_unstable();
                assert_eq!(receivers, (0..size).filter(|rank| *rank != root).collect::<Vec<_>>());
                // A reduction is a broadcast backwards.
                let reduce = all(size, |group, send| binomial_reduce(group, root, 1, send));
                let mut backwards: Vec<_> = reduce.keys().map(|(from, to)| (*to, *from)).collect();
                backwards.sort_unstable();
                assert_eq!(backwards, broadcast.keys().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn each_block_is_gathered_and_scattered_along_the_same_tree() {
        for size in 1..20 {
            for root in [0, size / 2, size - 1] {
                let gather = all(size, |group, send| binomial_gather(group, root, 3, send));
                let into_root: u64 = gather.iter().filter(|((_, to), _)| *to == root).map(|(_, bytes)| bytes[0]).sum();
                assert_eq!(into_root, 3 * u64::from(size - 1), "{size} from {root}");
                let scatter = all(size, |group, send| binomial_scatter(group, root, 3, send));
                let mut backwards: Vec<_> = scatter.iter().map(|((from, to), bytes)| (*to, *from, bytes[0])).collect();
                backwards.sort_unstable();
                assert_eq!(pairs(&gather), backwards);
            }
        }
        let gather = all(6, |group, send| binomial_gather(group, 0, 10, send));
        assert_eq!(pairs(&gather), [(1, 0, 10), (2, 0, 20), (3, 2, 10), (4, 0, 20), (5, 4, 10)]);
    }

    #[test]
    fn an_allreduce_is_symmetric_and_folds_what_is_no_power_of_two() {
        for size in 1..20_u32 {
            let found = all(size, |group, send| recursive_doubling(group, 2, send));
            for ((from, to), bytes) in &found {
                assert_eq!(found.get(&(*to, *from)), Some(bytes), "{size}");
            }
            let power = 1_u32 << size.ilog2();
            let expected = power * power.ilog2() + 2 * (size - power);
            assert_eq!(found.values().map(|bytes| bytes.len() as u32).sum::<u32>(), expected, "{size}");
        }
        let found = all(3, |group, send| recursive_doubling(group, 1, send));
        assert_eq!(pairs(&found), [(0, 1, 1), (1, 0, 1), (1, 2, 1), (2, 1, 1)]);
    }

    #[test]
    fn in_a_ring_each_block_goes_all_the_way_round() {
        let found = all(4, |group, send| ring(group, u64::from, send));
        assert_eq!(found[&(1, 2)], [1, 0, 3]);
        assert_eq!(pairs(&found), [(0, 1, 5), (1, 2, 4), (2, 3, 3), (3, 0, 6)]);
        assert!(all(1, |group, send| ring(group, u64::from, send)).is_empty());
    }

    #[test]
    fn everyone_sends_to_everyone_in_pairs() {
        let found = all(3, |group, send| pairwise(group, |to| 10 + u64::from(to), send));
        let expected = [(0, 1, 11), (0, 2, 12), (1, 0, 10), (1, 2, 12), (2, 0, 10), (2, 1, 11)];
        assert_eq!(pairs(&found), expected);
    }

    #[test]
    fn scans_and_barriers_double_their_distance() {
        let found = all(5, |group, send| scan(group, 1, send));
        let expected = [(0, 1), (0, 2), (0, 4), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)];
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), expected);
        let found = all(5, |group, send| dissemination(group, send));
        assert_eq!(found.len(), 15);
        assert_eq!(found[&(4, 3)], [0]);
        assert!(all(1, |group, send| dissemination(group, send)).is_empty());
    }
}
