//! The tasks and threads of one end of the tree, and their panics.
//!
//! Tasks and threads are spawned through a [`Tasks`] handle, under a name and in a tracing span. There are three
//! exceptions. A listener spawns the handshakes itself; their panics continue in the listener's task. The launcher reads
//! the output of a short command in helper threads; their panics continue in the thread that runs the command. The
//! thread that writes standard error serves the process from before the first session to its exit; it has no code that
//! panics.
//!
//! A panic unwinds only its own task, and any task that waits for that task would wait forever. [`Tasks`] therefore
//! catches each panic where it happens and reports it to the [`Panics`] of the same end, which cancels the work of that
//! end. An agent then reports itself as lost and exits with code 253. The launcher ends its agents and exits with code
//! 253.
//!
//! A thread that panics first prints its message and perhaps a backtrace, which takes long. Then it unwinds, drops its
//! ends of channels, and reports the panic. The panic hook records the panic before all of that, so a task that sees a
//! channel closed by the unwinding also finds the record. [`Panics`] then stops the work and waits for the report.
//!
//! Tests inject a panic with the environment variable `SCELA_PANIC=END/TASK`, for example `agent/rank`. Each task of
//! that name in a process of that kind then panics when it starts.

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::fmt::{self, Display, Formatter};
use std::future::poll_fn;
use std::io;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Once, OnceLock};
use std::task::Poll;
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

/// The environment variable that names the task that panics.
const INJECTION: &str = "SCELA_PANIC";
/// The stack size of a thread: enough for a current-thread runtime and its tasks.
const THREAD_STACK_BYTES: usize = 256 * 1024;
/// How long a thread that panics may take to print its message, if the program's panic hook has no bound of its own.
const REPORT_TIME: Duration = Duration::from_secs(5);

/// A panic in a task or thread. Its text reads as the predicate of "the agent was lost: ...".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Panic {
    /// The name of the task.
    pub task: &'static str,
    /// The source location, unless the panic hook was replaced, and the message.
    pub text: String,
}

impl Display for Panic {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "its task '{}' panicked{}", self.task, self.text)
    }
}

/// Spawns tasks and threads whose panics are reported. Clones belong to the same end.
#[derive(Clone, Debug)]
pub struct Tasks {
    end: &'static str,
    tracker: TaskTracker,
    panics: mpsc::UnboundedSender<Panic>,
    /// The first panic of a thread, recorded before the thread unwinds.
    begun: Arc<OnceLock<Panic>>,
}

/// Receives the panics of one end's tasks.
#[derive(Debug)]
pub struct Panics {
    tasks: Tasks,
    incoming: mpsc::UnboundedReceiver<Panic>,
    /// A panic was returned. Later ones are not.
    is_returned: bool,
}

impl Panics {
    /// Prepares the tasks of one end of the tree; `end` is `agent` or `launcher`.
    pub fn new(end: &'static str) -> Self {
        record_panics();
        // Bounded by the number of tasks: each panics at most once.
        let (panics, incoming) = mpsc::unbounded_channel();
        let tasks = Tasks { end, tracker: TaskTracker::new(), panics, begun: Arc::default() };
        Self { tasks, incoming, is_returned: false }
    }

    /// Returns the handle that spawns tasks.
    pub fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }

    /// Runs `work` and returns its result, or the first panic: of `work` itself, or of a task of this end, whenever it
    /// was spawned. After a panic, `work` is dropped before it is complete.
    pub async fn watch<T>(&mut self, name: &'static str, work: impl Future<Output = T>) -> Result<T, Panic> {
        let mut work = pin!(work);
        let begun = Arc::clone(&self.tasks.begun);
        // The work must not mistake a channel that an unwinding thread closed for that thread's normal end.
        let work = poll_fn(move |context| match begun.get() {
            Some(_) => Poll::Ready(None),
            None => work.as_mut().poll(context).map(Some),
        });
        let result = tokio::select! {
            biased;
            // Never closed: `self.tasks` holds a sender.
            Some(panic) = self.incoming.recv() => Err(panic),
            result = caught(self.tasks.end, name, work) => result,
        };
        match result {
            Err(panic) => {
                self.is_returned = true;
                Err(panic)
            }
            Ok(result) => match (self.late().await, result) {
                (None, Some(result)) => Ok(result),
                (Some(panic), _) => Err(panic),
                (None, None) => unreachable!("the work is only stopped for a panic"),
            },
        }
    }

    /// Returns a panic if there was one, unless one was returned before. If a thread is panicking, waits until it has
    /// printed its message, but at most 5 s. Call it when the exit code is decided after
    /// [`watch`](Self::watch) has returned.
    pub async fn late(&mut self) -> Option<Panic> {
        if self.is_returned {
            return None;
        }
        let panic = match (self.incoming.try_recv(), self.tasks.begun.get()) {
            (Ok(panic), _) => Some(panic),
            (Err(_), None) => None,
            (Err(_), Some(begun)) => match timeout(REPORT_TIME, self.incoming.recv()).await {
                Ok(Some(panic)) => Some(panic),
                Ok(None) | Err(_) => Some(begun.clone()),
            },
        };
        self.is_returned = panic.is_some();
        panic
    }
}

impl Tasks {
    /// Spawns a task onto this thread's `LocalSet`. The task runs in `span`, or in the current span if `span` is
    /// disabled by the filter.
    pub fn spawn(&self, name: &'static str, span: Span, work: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
        let span = if span.is_disabled() { Span::current() } else { span };
        // Boxed, so that everything below is compiled once for all tasks.
        self.tracker.spawn_local(self.clone().reported(name, Box::pin(work)).instrument(span))
    }

    async fn reported(self, name: &'static str, work: Pin<Box<dyn Future<Output = ()>>>) {
        if let Err(panic) = caught(self.end, name, work).await {
            report(&self.panics, panic);
        }
    }

    /// Starts a thread. Its stack is small: it runs a loop or a current-thread runtime.
    pub fn spawn_thread(&self, name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        let (end, panics, span) = (self.end, self.panics.clone(), Span::current());
        let begun = Arc::clone(&self.begun);
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(THREAD_STACK_BYTES).spawn(move || {
            let _entered = span.enter();
            THREAD.with(|thread| drop(thread.set((name, begun))));
            let result = catch_unwind(AssertUnwindSafe(|| {
                inject(end, name);
                work();
            }));
            if let Err(payload) = result {
                report(&panics, panic_of(name, payload));
            }
        })?;
        Ok(thread.thread().clone())
    }

    /// Returns a handle whose tasks are counted separately. Their panics are reported to the same end.
    pub fn group(&self) -> Self {
        Self { tracker: TaskTracker::new(), ..self.clone() }
    }

    /// Waits until all tasks of this handle and its clones have ended. The caller must spawn no task after that.
    pub async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Starts a thread that belongs to no end of the tree, because it runs until the process exits. Its panics are reported
/// by the panic hook only.
pub fn spawn_process_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(THREAD_STACK_BYTES).spawn(work).map(drop)
}

fn report(panics: &mpsc::UnboundedSender<Panic>, panic: Panic) {
    tracing::debug!(%panic, "a task has panicked");
    // The receiver is dropped only when this end has ended.
    let _ = panics.send(panic);
}

/// Runs `work` and turns a panic into an error.
async fn caught<T>(
    end: &'static str,
    name: &'static str,
    mut work: impl Future<Output = T> + Unpin,
) -> Result<T, Panic> {
    let mut injected = false;
    poll_fn(|context| {
        let poll = || {
            if !std::mem::replace(&mut injected, true) {
                inject(end, name);
            }
            Pin::new(&mut work).poll(context)
        };
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(panic_of(name, payload))),
        }
    })
    .await
}

/// Panics if the environment names this task.
fn inject(end: &str, name: &str) {
    static INJECTED: OnceLock<Option<String>> = OnceLock::new();
    if let Some(injected) = INJECTED.get_or_init(|| std::env::var(INJECTION).ok()) {
        assert!(injected.split_once('/') != Some((end, name)), "{INJECTION} asked for this");
    }
}

thread_local! {
    /// The source location of this thread's last panic.
    static LOCATION: Cell<Option<String>> = const { Cell::new(None) };
    /// The name of this thread, and where its panic is recorded. Unset in the first thread of a process, where no
    /// other task runs between a panic and its report.
    static THREAD: OnceCell<(&'static str, Arc<OnceLock<Panic>>)> = const { OnceCell::new() };
}

/// Makes the panic hook store the source location, which the payload of a panic lacks, and record a thread's panic.
fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let location = info.location().map(ToString::to_string);
            THREAD.with(|thread| {
                if let Some((name, begun)) = thread.get() {
                    let text = text_of(location.as_deref(), info.payload());
                    let _ = begun.set(Panic { task: name, text });
                }
            });
            LOCATION.set(location);
            previous(info);
        }));
    });
}

#[expect(clippy::needless_pass_by_value, reason = "the payload is consumed: the panic ends here")]
fn panic_of(task: &'static str, payload: Box<dyn Any + Send>) -> Panic {
    Panic { task, text: text_of(LOCATION.take().as_deref(), &*payload) }
}

fn text_of(location: Option<&str>, payload: &dyn Any) -> String {
    let message = payload.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
    let location = location.map(|location| format!(" at {location}")).unwrap_or_default();
    let message = message.map(|message| format!(": {message}")).unwrap_or_default();
    location + &message
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        LocalSet::new().block_on(&runtime, test)
    }

    #[test]
    fn a_panic_in_a_task_cancels_the_work_and_is_named() {
        let panic = run(async {
            let mut panics = Panics::new("test");
            let tasks = panics.tasks();
            panics
                .watch("work", async move {
                    tasks.spawn("quiet", Span::none(), async {});
                    tasks.spawn("loud", Span::none(), async {
                        yield_now().await;
                        panic!("{} apples", 3);
                    });
                    pending::<()>().await;
                })
                .await
        })
        .unwrap_err();
        assert_eq!(panic.task, "loud");
        let text = panic.to_string();
        assert!(text.starts_with("its task 'loud' panicked at nla/src/tasks.rs:"), "{text}");
        assert!(text.ends_with(": 3 apples"), "{text}");
    }

    #[test]
    fn a_panic_in_a_thread_or_in_the_work_itself_is_reported() {
        let panic = run(async {
            let mut panics = Panics::new("test");
            panics.tasks().spawn_thread("thread", || panic!("in a thread")).unwrap();
            panics.watch("work", pending::<()>()).await
        });
        assert_eq!(panic.unwrap_err().task, "thread");
        assert_eq!(run(Panics::new("test").watch("work", async { 7 })), Ok(7));
        let mut panics = Panics::new("test");
        let panic = run(panics.watch("work", async {
            yield_now().await;
            panic!("in the work");
        }));
        assert_eq!(panic.map(|()| "none").unwrap_err().task, "work");
    }

    /// Delays the report of a panic, as printing a backtrace does.
    struct SlowUnwinding;

    impl Drop for SlowUnwinding {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(200));
        }
    }

    #[test]
    fn work_that_ends_because_a_thread_unwinds_does_not_hide_the_panic() {
        let panic = run(async {
            let mut panics = Panics::new("test");
            let (held, mut closed) = mpsc::channel::<()>(1);
            let work = {
                let tasks = panics.tasks();
                async move {
                    let panicking = move || {
                        let _slow = SlowUnwinding;
                        let _held = held;
                        panic!("late");
                    };
                    tasks.spawn_thread("thread", panicking).unwrap();
                    closed.recv().await;
                }
            };
            panics.watch("work", work).await
        });
        assert_eq!(panic.unwrap_err().task, "thread");
    }

    #[test]
    fn a_panic_after_the_work_is_returned_once() {
        run(async {
            let mut panics = Panics::new("test");
            assert_eq!(panics.watch("work", async {}).await, Ok(()));
            assert_eq!(panics.late().await, None);
            let (held, mut closed) = mpsc::channel::<()>(1);
            let panicking = move || {
                let _slow = SlowUnwinding;
                let _held = held;
                panic!("late");
            };
            panics.tasks().spawn_thread("thread", panicking).unwrap();
            closed.recv().await;
            let panic = panics.late().await.unwrap();
            assert!(panic.task == "thread" && panic.text.ends_with(": late"), "{panic}");
            assert_eq!(panics.late().await, None);
        });
    }

    #[test]
    fn a_group_ends_when_its_own_tasks_have_ended() {
        run(async {
            let panics = Panics::new("test");
            panics.tasks().spawn("endless", Span::none(), pending());
            let group = panics.tasks().group();
            group.spawn("short", Span::none(), yield_now());
            group.ended().await;
        });
    }
}
