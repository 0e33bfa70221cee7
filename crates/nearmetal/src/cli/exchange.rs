//! Arguments of `nearmetal exchange`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use nm_auth::SESSIONS_MAX;
use nm_exchange::control::Owner;
use nm_exchange::link::Address;
use nm_exchange::network::{NODES_MAX, NodeId, Role};
use nm_load::Arrivals;
use nm_model::exchange::{Durability, NodeCounts, OrderMix};
use nm_model::limits;
use nm_model::link_transport::LinkTransport;
use nm_run::day::DAY_SECONDS_MAX;
use nm_run::round::Kill;

pub use crate::cli::access::{AccessArgs, CredentialsArgs, RunningArgs};
use crate::cli::backup::{BackupArgs, RecoverArgs, RestoreArgs};
use crate::cli::directions::{
    AuctionArgs, DirectionArgs, FirmArgs, MassCancelArgs, ResumeArgs, ScheduleArgs,
};
use crate::cli::firms::FirmsCommand;
use crate::cli::format::{FormatArgs, ShowArgs};
use crate::cli::number::number;
use crate::cli::percent::percent;
use crate::cli::service::{NetworkCommand, ServeArgs};
use crate::cli::shared::OUT;

/// Instruments of one `exchange move`.
const MOVES_MAX: usize = 10_000;

#[derive(Debug, Subcommand)]
pub enum ExchangeCommand {
    /// Start a network, drive orders through it at a rate, and judge the round trips.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange run\n  \
        nearmetal exchange run --nodes 1-1-1-1 --rate 100000\n  \
        nearmetal exchange run --durability disk-quorum --kill mediator:0@2\n  \
        nearmetal exchange run --rate 20000 --moves-per-minute 1000 --moves-compare\n  \
        nearmetal exchange run --instruments instruments.toml --rate 10\n  \
        nearmetal exchange run --rounds 1 --record-flow day.flow\n  \
        nearmetal exchange run --nodes 4-4-4-4 --replay-flow day.flow\n  \
        nearmetal exchange run --nodes 4-4-4-4 --rate 20000 --hosts hosts.txt")]
    Run(RunArgs),
    /// Run a scripted day of load on one network, and judge each second, phase and event.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange ramp --step 5000:25000\n  \
        nearmetal exchange ramp --step 5000:25000 --nodes 2-2-5-2 --spares 4 --policies -\n  \
        nearmetal exchange ramp --script day.toml --nodes 2-2-4-2\n  \
        nearmetal exchange ramp --script day.toml --durability memory-quorum --record --out DAY\n  \
        nearmetal exchange ramp --rolling-restart 2000 --program ./nearmetal-next --record\n\n\
        Exit code: 0 all phases are within the limit, 1 not, 3 not decided, because the load\n\
        generator itself was late or a node ended by itself")]
    Ramp(RampArgs),
    /// Find the highest rate that keeps ES10 and p99 under the limit.
    #[command(after_help = "Examples:\n  nearmetal exchange search --nodes 1-1-1-1\n  \
        nearmetal exchange search --nodes 2-2-2-2 --durability memory-quorum --limit 5")]
    Search(SearchArgs),
    /// Keep the nodes of this host running, by the network's file, until SIGTERM or Ctrl-C.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange network new network.toml --nodes 1-1-1-1\n  \
        nearmetal exchange serve --network network.toml\n  \
        nearmetal exchange serve --network network.toml --unit > nearmetal-exchange.service")]
    Serve(ServeArgs),
    /// Write or check the file of a network.
    #[command(subcommand)]
    Network(NetworkCommand),
    /// One node of a network, until its input ends; started by `exchange run` or `serve`, or by
    /// hand.
    Node(NodeArgs),
    /// The agent of a run on one of its hosts, until its input ends; started by `--hosts`.
    Host(HostArgs),
    /// Copy what the cells of a network have on disk, while it runs, or check such a copy.
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        after_help = "Examples:\n  \
        nearmetal exchange backup --network network.toml --out backup-1\n  \
        nearmetal exchange backup check backup-1\n\n\
        Exit code: 0 the copy leads to the states that it notes, 2 it does not"
    )]
    Backup(BackupArgs),
    /// Make the data folders of a network from a backup, at its end or at an earlier place.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange restore backup-1 --data data-2\n  \
        nearmetal exchange restore backup-1 --at 2026-03-01T09:30:00Z --data data-2\n  \
        nearmetal exchange restore backup-1 --at 0:1234 --data data-2")]
    Restore(RestoreArgs),
    /// Make the data folders of a network anew after most replicas of a cell are lost.
    #[command(after_help = "Example:\n  \
        nearmetal exchange recover --network network.toml --data data-2 --accept-loss\n\n\
        Without --accept-loss it says what may be lost, and changes nothing")]
    Recover(RecoverArgs),
    /// Check from client logs and journals that nothing was lost, duplicated or reordered.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange run --record --out DIR\n  nearmetal exchange verify DIR\n  \
        nearmetal exchange verify DIR --cuts 1000")]
    Verify(VerifyArgs),
    /// Kill nodes at random under load, again and again, and verify each time: of all durabilities
    /// and classes in turn, where options name none.
    Torture(TortureArgs),
    /// Show whether a running network trades, its members and leaders, and the cells of
    /// instruments.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange status --network network.toml\n  \
        nearmetal exchange status --folder nearmetal-out/RUN --format json\n\n\
        Exit code: 0 healthy, 3 degraded (some instruments cannot be traded, or a node is \
        missing), 1 no instrument can be traded")]
    Status(StatusArgs),
    /// Show a running network live in the terminal: nodes with rates, leaders, busy instruments,
    /// moves and faults.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange top --network network.toml\n  \
        nearmetal exchange top --network network.toml --once\n\n\
        q ends it. Exit code: that of `exchange status`")]
    Top(TopArgs),
    /// Move instruments to another cell of a running network, while they are traded.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange move 3 7 1000007 --to 0 --network network.toml\n  \
        nearmetal exchange move 3 --to 1 --folder nearmetal-out/RUN --format json\n\n\
        Exit code: 0 done, 5 refused, such as by a cell that is full, 4 no node answers")]
    Move(MoveArgs),
    /// Give a spare mediator its share of the load of a running network.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange grow --network network.toml\n  \
        nearmetal exchange grow --cell 3 --folder nearmetal-out/RUN\n\n\
        Exit code: 0 done, 2 there is no spare cell, 5 moves were refused, 4 no node answers")]
    Grow(ResizeArgs),
    /// Take all instruments from a mediator of a running network, which is spare then.
    #[command(after_help = "Example:\n  \
        nearmetal exchange shrink --cell 3 --network network.toml\n\n\
        Exit code: 0 done, 2 the cell has no instruments, 5 moves were refused, 4 no node answers")]
    Shrink(ResizeArgs),
    /// Add a node that its file lacks to a running network; a mediator with a cell of its own.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange add --folder nearmetal-out/RUN\n  \
        nearmetal exchange add router --folder nearmetal-out/RUN\n  \
        nearmetal exchange add processor --folder nearmetal-out/RUN\n  \
        nearmetal exchange add gateway --folder nearmetal-out/RUN\n  \
        nearmetal exchange add --network network.toml --address 127.0.0.1:7001 \
        --replication 127.0.0.1:7002\n\n\
        `exchange run` starts it, as it has started the others. Where nodes were started by hand,\n\
        so is this one, by the command that is printed. The new cell is spare: `exchange grow`,\n\
        `exchange move` or policies give it instruments.\n\
        Exit code: 0 done, 2 it cannot be added, 4 no node answers")]
    Add(AddArgs),
    /// Remove a node that was added, when its instruments or clients have moved away.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange remove mediator:4 --folder nearmetal-out/RUN\n  \
        nearmetal exchange remove router:2 --folder nearmetal-out/RUN\n  \
        nearmetal exchange remove gateway:2 --folder nearmetal-out/RUN\n\n\
        Exit code: 0 done, 2 it was not added while the network ran, or no other node could do its \
        work, 5 moves were refused, 4 no node answers, or clients stay at a gateway")]
    Remove(ChosenNodeArgs),
    /// Make a mediator or gateway of a running network carry nothing, so that it can be stopped.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange drain mediator:1 --network network.toml\n  \
        nearmetal exchange drain gateway:0 --folder nearmetal-out/RUN\n\n\
        Exit code: 0 done, 2 the node cannot be drained or no other one could take over, 5 moves \
        were refused, 4 no node answers, or not in time, or clients stay at a gateway")]
    Drain(ChosenNodeArgs),
    /// Let halted instruments trade again, or a drained mediator or gateway work again.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange resume ACME --network network.toml\n  \
        nearmetal exchange resume --all --folder nearmetal-out/RUN\n  \
        nearmetal exchange resume mediator:1 --network network.toml\n\n\
        An instrument goes on in the phase before the halt. A node gets nothing back by that:\n\
        `exchange grow` or policies give a mediator instruments again, and clients stay at the\n\
        gateways where they are.\n\
        Exit code: 0 done, 2 there is no such instrument, or it is neither a mediator nor a \
        gateway, 4 no node answers")]
    Resume(ResumeArgs),
    /// Halt trading: no trades and no new orders, until `exchange resume`; cancels are accepted.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange halt ACME --network network.toml\n  \
        nearmetal exchange halt --all --folder nearmetal-out/RUN\n\n\
        Each cell does it in its log, so it outlives a leader and a move of the instrument.\n\
        All clients, the feed and followers of books get it.\n\
        Exit code: 0 done, or it was so, 2 there is no such instrument, 4 no node answers, \
        5 not done")]
    Halt(DirectionArgs),
    /// Begin an auction: orders are collected until `--end`, then trade at one price.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange auction ACME --network network.toml\n  \
        nearmetal exchange auction ACME --end --network network.toml\n\n\
        A halted instrument takes part when it is resumed.\n\
        Exit code: 0 done, or it was so, 2 there is no such instrument, 4 no node answers, \
        5 it is halted, or not done")]
    Auction(AuctionArgs),
    /// End the day: day orders are cancelled, good-till-cancel ones stay.
    #[command(after_help = "Example:\n  \
        nearmetal exchange end-of-day --all --network network.toml\n\n\
        Exit code: 0 done, 2 there is no such instrument, 4 no node answers, 5 not done")]
    EndOfDay(DirectionArgs),
    /// Stop a firm: its new orders are rejected in every cell, and all live ones are cancelled.
    #[command(after_help = "Example:\n  \
        nearmetal exchange kill-firm \"ACME Capital\" --network network.toml\n\n\
        Its sessions get an event for each order, and may cancel. It holds until\n\
        `exchange restore-firm`, also in cells that are added later.\n\
        Exit code: 0 done, or it was so, 2 there is no such firm, 4 a cell does not answer")]
    KillFirm(FirmArgs),
    /// Let a firm send orders again after `exchange kill-firm`.
    #[command(after_help = "Example:\n  \
        nearmetal exchange restore-firm \"ACME Capital\" --network network.toml\n\n\
        Exit code: 0 done, or it was so, 2 there is no such firm, 4 a cell does not answer")]
    RestoreFirm(FirmArgs),
    /// Cancel all live orders of a session or a firm, in every cell or on one instrument.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange mass-cancel --session 17 --network network.toml\n  \
        nearmetal exchange mass-cancel --firm \"ACME Capital\" --symbol ACME \
        --folder nearmetal-out/RUN\n\n\
        Its sessions get an event for each order, and may send new ones.\n\
        Exit code: 0 done, 2 there is no such session, firm or instrument, 4 no node answers")]
    MassCancel(MassCancelArgs),
    /// Replace a node's replica of a cell by one of another node, while the network runs.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange replace 1 processor:1 processor:0 --network network.toml\n  \
        nearmetal exchange replace 0 mediator:0 mediator:2 --folder nearmetal-out/RUN\n\n\
        The new replica is brought up to date first, then it counts in the place of the old one,\n\
        whose node need not be up.\n\
        Exit code: 0 done, 2 the replica cannot be replaced, 4 no node answers, or not in time")]
    Replace(ReplaceArgs),
    /// Remove what a session or an owner has in the cells: its orders, sessions and instruments.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange retire --session 17 --network network.toml\n  \
        nearmetal exchange retire --owner address:10.0.0.7 --folder nearmetal-out/RUN\n  \
        nearmetal exchange retire --firm \"ACME Capital\" --folder nearmetal-out/RUN\n\n\
        Its live orders are cancelled, and instruments that nobody else uses are removed. Their\n\
        memory comes back. For a minute the sessions are refused; then they may begin anew.\n\
        An owner is session:NUMBER (who has its key), address:ADDRESS, user:NUMBER or\n\
        firm:NUMBER.\n\
        Exit code: 0 done, 4 a cell does not answer, or something is left after a minute")]
    Retire(RetireArgs),
    /// Show and change what may be traded on a running network: its instrument master.
    #[command(subcommand)]
    Instruments(InstrumentsCommand),
    /// Show and change the firms of a running network: their sessions, and what each may have.
    #[command(subcommand, alias = "firm")]
    Firms(FirmsCommand),
    /// Begin the phases of the day at their times: pre-open, open, closing auction, close.
    #[command(after_help = "Example:\n  \
        nearmetal exchange schedule schedule.toml --network network.toml\n\n\
        It runs until Ctrl-C. Control's log has what has begun: a phase that was missed while\n\
        this was down begins once when it is started again. docs/guides/exchange-controls.md\n\
        has the file.\n\
        Exit code: 0 ended, 2 a wrong file or symbol, 4 no node answers")]
    Schedule(ScheduleArgs),
    /// Let policies activate cells and move instruments of a running network, until Ctrl-C.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange policy --network network.toml --dry-run\n  \
        nearmetal exchange policy --folder nearmetal-out/RUN --settings policies.toml\n\n\
        Exit code: 0 ended, 2 wrong settings, 4 no node answers")]
    Policy(PolicyArgs),
    /// Let FIX clients trade on a running network: an acceptor of FIX 4.4 and FIXT 1.1.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange fix --network network.toml --listen 127.0.0.1:9878 \
        --sessions sessions.toml\n  \
        nearmetal exchange fix --folder nearmetal-out/RUN --listen 127.0.0.1:9878 \
        --sessions sessions.toml --store fix-store\n\n\
        It runs until Ctrl-C. docs/guides/fix.md has the file of sessions, and a first order.\n\
        Exit code: 0 ended, 2 wrong files, 4 a store cannot be written, 5 the address or the \
        store is in use")]
    Fix(FixArgs),
    /// Let OUCH clients trade on a running network: OUCH 5.0 over SoupBinTCP.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange ouch --network network.toml --listen 127.0.0.1:9879 \
        --sessions sessions.toml\n  \
        nearmetal exchange ouch --folder nearmetal-out/RUN --listen 127.0.0.1:9879 \
        --sessions sessions.toml --store ouch-store\n\n\
        It runs until Ctrl-C. docs/guides/ouch.md has the file of sessions, and a first order.\n\
        Exit code: 0 ended, 2 wrong files, 4 a store cannot be written, 5 the address or the \
        store is in use")]
    Ouch(OuchArgs),
    /// Publish the market data of a running network: ITCH 5.0 over MoldUDP64 on two lines.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange feed-publish --folder nearmetal-out/RUN\n  \
        nearmetal exchange feed-publish --network network.toml --line-a 239.1.1.1:26001 \
        --line-b 239.1.1.2:26002 --interface 10.0.0.1 --symbols sessions.toml\n\n\
        It runs until Ctrl-C. docs/guides/feed.md has the messages.\n\
        Exit code: 0 ended, 2 wrong files, 4 an address cannot be used, 5 an address is in use")]
    FeedPublish(FeedPublishArgs),
    /// Receive market data: join both lines, fill gaps, rebuild every book, and show or check it.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange feed --seconds 10\n  \
        nearmetal exchange feed --seconds 10 --drop 1% --double 1% --check --folder \
        nearmetal-out/RUN\n\n\
        Exit code: 0 received, with --check all books are equal, 1 a book is not, or nothing \
        came, 2 wrong files, 4 an address cannot be used, 5 an address is in use")]
    Feed(FeedArgs),
    /// Replay a day of another venue, and find the largest multiple of its speed that keeps the
    /// limit.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange replay 01302020.NASDAQ_ITCH50.gz --from 09:30:00 --seconds 10\n  \
        nearmetal exchange replay orders.csv --speed 1x..8x --nodes 2-2-2-2 --limit 5\n\n\
        A name that ends with .csv or .csv.gz is a table of orders, any other one ITCH 5.0.\n\
        Exit code: 0 some speed is carried, 1 none is, 2 the file is no day")]
    Replay(ReplayArgs),
    /// Make a synthetic day for `exchange replay`: ITCH 5.0 of no venue.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange make-day day.itch.gz --rate 20000 --seconds 60\n\n\
        Exit code: 0 written, 2 wrong arguments, 4 the file cannot be written")]
    MakeDay(MakeDayArgs),
    /// Show the conflated feed of best prices that `exchange feed-publish --top-of-book` sends.
    #[command(after_help = "Example:\n  \
        nearmetal exchange top-of-book --line 127.0.0.1:26005 --seconds 10\n\n\
        Exit code: 0 received, 1 nothing came, 4 the address cannot be used, 5 it is in use")]
    TopOfBook(TopOfBookArgs),
    /// Move one instrument, as `exchange move` does.
    #[command(after_help = "Example:\n  \
        nearmetal exchange assign 1000007 0 --network network.toml\n\n\
        Exit code: 0 done, 5 refused, such as by a cell that is full, 4 no node answers")]
    Assign(AssignArgs),
    /// Make the secret of a network, and the keys that clients and operators are given.
    #[command(subcommand)]
    Secret(SecretCommand),
}

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Make a secret, in a new file that only its owner may read.
    #[command(after_help = "Example:\n  nearmetal exchange secret new secret\n\n\
        Give it to the nodes by `secret = \"FILE\"` in the network's file.")]
    New(NewSecretArgs),
    /// Derive keys from a secret, for a client, an observer or an operator.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange secret derive --secret secret --sessions 1-100 --out client\n  \
        nearmetal exchange secret derive --secret secret --operator --out operator")]
    Derive(DeriveArgs),
}

#[derive(Debug, Subcommand)]
pub enum InstrumentsCommand {
    /// Show the instruments that may be traded, with their rules.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange instruments list --network network.toml\n  \
        nearmetal exchange instruments list --folder nearmetal-out/RUN --format json\n\n\
        Exit code: 0 done, 2 the network has no instrument master, 4 no node answers")]
    List(InstrumentsArgs),
    /// List the instruments of a file, or change the prices and quantities that they allow.
    #[command(after_help = "Example:\n  \
        nearmetal exchange instruments add more.toml --folder nearmetal-out/RUN\n\n\
        The file has [[instrument]] tables, as that of `exchange run --instruments`.\n\
        Exit code: 0 done, 2 it cannot be listed, 4 no node answers")]
    Add(AddInstrumentsArgs),
    /// List an instrument no more: its live orders can only be cancelled then.
    #[command(after_help = "Example:\n  \
        nearmetal exchange instruments remove ACME --folder nearmetal-out/RUN\n\n\
        Exit code: 0 done, 2 it is not listed, or the last one, 4 no node answers")]
    Remove(RemoveInstrumentArgs),
}

#[derive(Debug, Args)]
pub struct InstrumentsArgs {
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct AddInstrumentsArgs {
    /// The file of instruments.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct RemoveInstrumentArgs {
    /// Its symbol.
    pub symbol: String,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct NewSecretArgs {
    /// The file, which must not exist.
    pub file: PathBuf,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("rights").required(true).multiple(true))]
pub struct DeriveArgs {
    /// The file of the secret.
    #[arg(long, value_name = "FILE")]
    pub secret: PathBuf,
    /// Keys for these sessions, such as 1-100.
    #[arg(long, value_name = "FIRST-LAST", value_parser = session_range, group = "rights")]
    pub sessions: Option<(u32, u32)>,
    /// The key to change the network and to halt trading (session 0).
    #[arg(long, group = "rights")]
    pub operator: bool,
    /// The key to see the status of the network.
    #[arg(long, group = "rights")]
    pub observer: bool,
    /// The file for the keys, which must not exist.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Sessions `FIRST-LAST`, or one.
fn session_range(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last && last - first < SESSIONS_MAX => {
            Ok((first, last))
        }
        _ => Err(format!("write FIRST-LAST, such as 1-100, with at most {SESSIONS_MAX} sessions")),
    }
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub running: RunningArgs,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    /// Print one page, and end; so it is without a terminal.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct MoveArgs {
    /// The instruments.
    #[arg(required = true, num_args = 1..=MOVES_MAX)]
    pub instruments: Vec<u32>,
    /// Their new cell.
    #[arg(long, value_name = "CELL")]
    pub to: u16,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct ResizeArgs {
    /// The cell; the first spare one, or the last that has instruments, if not given.
    #[arg(long)]
    pub cell: Option<u16>,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// What is added: mediator, router, processor or gateway.
    #[arg(value_name = "CLASS", default_value_t = Role::Mediator)]
    pub role: Role,
    /// Where it is to listen; a free address of this machine, if the network's are of this machine.
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// Where a mediator is to listen for other replicas of its cell; as the other mediators, if
    /// neither address is given.
    #[arg(long, value_name = "ADDRESS", requires = "address")]
    pub replication: Option<Address>,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct ChosenNodeArgs {
    /// The node, such as mediator:0.
    #[arg(value_name = "ROLE:INDEX")]
    pub node: NodeId,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct ReplaceArgs {
    /// The cell.
    #[arg(value_name = "CELL")]
    pub cell: u16,
    /// The node whose replica is replaced, such as processor:1.
    #[arg(value_name = "FROM")]
    pub from: NodeId,
    /// The node that gets a replica, of the same class.
    #[arg(value_name = "TO")]
    pub to: NodeId,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct RetireArgs {
    /// The session.
    #[arg(long, value_name = "NUMBER", required_unless_present_any = ["owner", "firm"])]
    pub session: Option<u32>,
    /// The firm, by its name.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["session", "owner"])]
    pub firm: Option<String>,
    /// The owner: whoever has a session's key, or else an address or a user of the node's host.
    #[arg(long, value_name = "OWNER", conflicts_with = "session")]
    pub owner: Option<Owner>,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// Settings of the policies and sites of the nodes, a TOML file; defaults without it.
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Only show what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// How often the network is asked, ms.
    #[arg(long, value_name = "MS", default_value_t = 1000,
          value_parser = number(100_u64..=60_000))]
    pub every_ms: u64,
    /// When to end, s; without it, by Ctrl-C.
    #[arg(long, value_name = "S", value_parser = number(1_u64..=86_400))]
    pub seconds: Option<u64>,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct DoorArgs {
    #[command(flatten)]
    pub running: RunningArgs,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    /// Where clients connect, such as 127.0.0.1:9878.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Who may log on and what is traded, a TOML file.
    #[arg(long, value_name = "FILE")]
    pub sessions: PathBuf,
}

#[derive(Debug, Args)]
pub struct FixArgs {
    #[command(flatten)]
    pub door: DoorArgs,
    /// Folder for what must survive the door: numbers, messages and orders of each session.
    #[arg(long, value_name = "DIR", default_value = "nearmetal-fix")]
    pub store: PathBuf,
    /// File of an operator's key, by which the door follows books for market data in a network
    /// with a secret; that of --credentials if not given.
    #[arg(long, value_name = "FILE")]
    pub market_credentials: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct OuchArgs {
    #[command(flatten)]
    pub door: DoorArgs,
    /// Folder for what must survive the door: numbers, messages and orders of each session.
    #[arg(long, value_name = "DIR", default_value = "nearmetal-ouch")]
    pub store: PathBuf,
}

/// Where a feed is.
#[derive(Debug, Args)]
pub struct LinesArgs {
    /// Line A: an address, or a multicast group.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:26001")]
    pub line_a: SocketAddr,
    /// Line B, with the same packets.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:26002")]
    pub line_b: SocketAddr,
    /// Where requests for missed messages are answered, by UDP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:26003")]
    pub requests: SocketAddr,
    /// Where snapshots are given, by SoupBinTCP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:26004")]
    pub snapshots: SocketAddr,
    /// Address of the interface for multicast; that of the default route if not given.
    #[arg(long, value_name = "IP")]
    pub interface: Option<IpAddr>,
    /// What is shown, a TOML file with `[[symbol]]` as doors have it. If not given, what the
    /// network's instrument master lists; without one all instruments, by number.
    #[arg(long, value_name = "FILE")]
    pub symbols: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct FeedPublishArgs {
    #[command(flatten)]
    pub running: RunningArgs,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    #[command(flatten)]
    pub lines: LinesArgs,
    /// MiB of messages that are kept for requests.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = number(1..=65_536_u64))]
    pub keep_mib: u64,
    /// Send best prices here as well: an address, or a multicast group.
    #[arg(long, value_name = "ADDRESS")]
    pub top_of_book: Option<SocketAddr>,
    /// Send at most one message of best prices for a stock in so many ms.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = number(1..=60_000_u64))]
    pub top_interval: u64,
}

#[derive(Debug, Args)]
pub struct TopOfBookArgs {
    /// Where best prices come: an own address, or a multicast group.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:26005")]
    pub line: SocketAddr,
    /// Address of the interface for multicast; that of the default route if not given.
    #[arg(long, value_name = "IP")]
    pub interface: Option<IpAddr>,
    /// How long it receives; until Ctrl-C if not given.
    #[arg(long, value_name = "S", value_parser = number(1..=86_400_u64))]
    pub seconds: Option<u64>,
}

#[derive(Debug, Args)]
pub struct FeedArgs {
    #[command(flatten)]
    pub lines: LinesArgs,
    /// How long it receives; until Ctrl-C or the end of the feed if not given.
    #[arg(long, value_name = "S", value_parser = number(1..=86_400_u64))]
    pub seconds: Option<u64>,
    /// Lose so many packets of each line.
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    pub drop: f64,
    /// Have so many packets of each line come twice.
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    pub double: f64,
    /// Seed of everything random; the same seed gives the same draws.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Show the best prices of so many stocks at the end.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Compare each book with that of its cell at the end; needs --network or --folder.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub running: RunningArgs,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
}

#[derive(Debug, Args)]
pub struct AssignArgs {
    /// The instrument.
    pub instrument: u32,
    /// The new cell of the instrument.
    pub cell: u16,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// gateway, router, mediator or processor.
    #[arg(long)]
    pub role: Role,
    /// Which one of its class, from 0 on.
    #[arg(long, value_parser = number(0..=NODES_MAX as u16 - 1))]
    pub index: u16,
    /// The network's file, the same for all of its nodes.
    #[arg(long, value_name = "FILE")]
    pub network: PathBuf,
}

#[derive(Debug, Args)]
pub struct HostArgs {
    /// Folder in which the run has a folder of its own.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

/// The names of transports, which completions and help list as well.
fn transport_parser() -> impl TypedValueParser<Value = LinkTransport> {
    PossibleValuesParser::new(LinkTransport::ALL.iter().map(|transport| transport.name()))
        .try_map(|name| name.parse::<LinkTransport>())
}

/// A low and a high rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Requests a second before and after.
    pub low_per_s: f64,
    /// Requests a second in between.
    pub high_per_s: f64,
}

fn step(text: &str) -> Result<Step, String> {
    let rates = text.split_once(':').and_then(|(low, high)| {
        Some(Step { low_per_s: low.parse().ok()?, high_per_s: high.parse().ok()? })
    });
    rates.ok_or_else(|| "write LOW:HIGH in requests a second, such as 5000:25000".to_string())
}

/// Where nodes run.
#[derive(Debug, Args)]
pub struct HostsArgs {
    /// Hosts for the nodes, reached by ssh; this machine if not given.
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// Folder on each of the hosts in which each round has a folder of its own.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/nearmetal-exchange")]
    pub host_data: PathBuf,
}

/// The network and its load, for `run`, `search` and `ramp`.
#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// Gateways, routers, mediators and transaction processors.
    #[arg(long, default_value = "2-2-2-2", value_name = "G-R-M-P")]
    pub nodes: NodeCounts,
    /// Load before each measurement, ms.
    #[arg(long, default_value_t = 500, value_name = "MS",
        value_parser = number(0..=limits::EXCHANGE_WARMUP_MS_MAX))]
    pub warmup: u64,
    /// When a request counts as done: none, memory-quorum or disk-quorum.
    #[arg(long, default_value = "none")]
    pub durability: Durability,
    /// What carries the links: TCP, Unix sockets, shared memory, or TCP between accelerated nodes.
    #[arg(long, default_value = "tcp", value_parser = transport_parser())]
    pub transport: LinkTransport,
    /// Orders of the load: default, exchange-core or monterey.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub mix: OrderMix,
    /// Seed of everything random; the same seed gives the same draws.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Limit for ES10 and p99, ms.
    #[arg(long, default_value_t = nm_model::exchange::SLA_MS, value_name = "MS")]
    pub limit: f64,
    /// Mediators, the last ones, that have no instruments at first: for `exchange policy`.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = number(0..=NODES_MAX - 1))]
    pub spares: usize,
    /// Let nodes and sessions authenticate by a secret made for each round; always with --hosts.
    #[arg(long)]
    pub authenticate: bool,
    #[command(flatten)]
    pub hosts: HostsArgs,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Requests a second.
    #[arg(long, default_value_t = 10_000.0)]
    pub rate: f64,
    /// Measuring time of a round, s.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// Rounds, each with a network of its own; five or more support a verdict.
    #[arg(long, default_value_t = 5, value_parser = number(1_u32..=1000))]
    pub rounds: u32,
    /// Kill a node in each round and start it again, such as mediator:0@2.5.
    #[arg(long, value_name = "ROLE:INDEX@SECONDS")]
    pub kill: Vec<Kill>,
    /// Move so many instruments a minute to another cell while they are traded.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    pub moves_per_minute: f64,
    /// Run each round also without moves, and compare both.
    #[arg(long, requires = "moves_per_minute")]
    pub moves_compare: bool,
    /// Keep the client's log and journals of each round, for `exchange verify`.
    #[arg(long)]
    pub record: bool,
    /// List what may be traded beside the load, a TOML file; without it anything may.
    #[arg(long, value_name = "FILE")]
    pub instruments: Option<PathBuf>,
    /// The firms whose sessions may connect beside the load, a TOML file; without it any may.
    #[arg(long, value_name = "FILE")]
    pub firms: Option<PathBuf>,
    /// Arrival process of requests: even, poisson or bursts.
    #[arg(long, default_value = "poisson", value_name = "NAME")]
    pub arrivals: Arrivals,
    /// Record the requests of the first round, with their times, in a file.
    #[arg(long, value_name = "FILE")]
    pub record_flow: Option<PathBuf>,
    /// Replay the requests of such a file in each round.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "arrivals", "mix"])]
    pub replay_flow: Option<PathBuf>,
    /// Stall the load generator for this time in the middle of a round, ms: a test of the figures.
    #[arg(long, value_name = "MS")]
    pub stall: Option<f64>,
    /// Keep every sample, one ns value a line, in the folder's `samples/*.dat`.
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub network: NetworkArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("load").required(true))]
pub struct RampArgs {
    /// The script of the day, see the guide of the exchange.
    #[arg(long, value_name = "FILE", group = "load")]
    pub script: Option<PathBuf>,
    /// Three phases instead of a script: a low rate, a high one, and the low one again.
    #[arg(long, value_name = "LOW:HIGH", value_parser = step, group = "load")]
    pub step: Option<Step>,
    /// Three phases at this rate instead of a script; in the second one every node is restarted,
    /// one after the other, mediators and gateways after they were drained.
    #[arg(long, value_name = "RATE", group = "load", conflicts_with = "policies")]
    pub rolling_restart: Option<f64>,
    /// With --rolling-restart: start each node with this nearmetal, which may be another version.
    #[arg(long, value_name = "NEW", conflicts_with = "hosts")]
    pub program: Option<PathBuf>,
    /// Length of each of the three phases, s.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", conflicts_with = "script",
        value_parser = number(1..=DAY_SECONDS_MAX))]
    pub phase_seconds: u32,
    /// Let policies activate spare mediators and move instruments during the day, by the settings
    /// of this file; `-` for the defaults.
    #[arg(long, value_name = "FILE")]
    pub policies: Option<PathBuf>,
    /// How often the policies decide, ms.
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = number(100_u64..=60_000))]
    pub policies_every_ms: u64,
    /// Seconds outside the limit that a phase may have if the script does not say it.
    #[arg(long, default_value_t = 0, value_name = "SECONDS",
        value_parser = number(0..=DAY_SECONDS_MAX))]
    pub outside_max: u32,
    /// Keep the client's log and journals of each round, for `exchange verify`.
    #[arg(long)]
    pub record: bool,
    #[command(flatten)]
    pub network: NetworkArgs,
}

#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Measuring time of a round, s.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// First rate that is tried, requests a second; 5000 for each mediator if not given.
    #[arg(long, value_name = "RATE")]
    pub from: Option<f64>,
    /// Highest rate that is tried.
    #[arg(long, default_value_t = 1e6, value_name = "RATE")]
    pub to: f64,
    /// Rounds at each end of the bracket.
    #[arg(long, default_value_t = 5, value_parser = number(1_u32..=100))]
    pub rounds: u32,
    /// Largest distance between the ends of the bracket, %.
    #[arg(long, default_value_t = 8.0, value_name = "PERCENT")]
    pub within: f64,
    #[command(flatten)]
    pub network: NetworkArgs,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The day: messages of ITCH 5.0 with two bytes of length before each, or a table.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Speeds that are tried, as multiples of the day's.
    #[arg(long, default_value = "1x..64x", value_name = "FROM..TO", value_parser = speeds)]
    pub speed: Speeds,
    /// Time of the day at which the part begins, such as 09:30:00; its first order if not given.
    #[arg(long, value_name = "TIME", value_parser = time_of_day)]
    pub from: Option<u64>,
    /// Length of the part, s of the day.
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    pub seconds: f64,
    /// Rounds at each end of the bracket.
    #[arg(long, default_value_t = 3, value_parser = number(1_u32..=100))]
    pub rounds: u32,
    /// Largest distance between the ends of the bracket, %.
    #[arg(long, default_value_t = 8.0, value_name = "PERCENT")]
    pub within: f64,
    #[command(flatten)]
    pub network: NetworkArgs,
}

/// Speeds from a lowest to a highest one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    pub from: f64,
    pub to: f64,
}

/// Reads speeds such as 1x..64x, or one such as 4x.
fn speeds(text: &str) -> Result<Speeds, String> {
    let one = |text: &str| text.strip_suffix('x').and_then(|it| it.parse::<f64>().ok());
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    match (one(from), one(to)) {
        (Some(from), Some(to)) if from >= 0.01 && to >= from && to <= 1_000.0 => {
            Ok(Speeds { from, to })
        }
        _ => Err("speeds are such as 1x..64x, from 0.01x to 1000x".to_string()),
    }
}

fn time_of_day(text: &str) -> Result<u64, String> {
    let why = "a time is such as 09:30:00";
    nm_replay::csv_day::time_ns(text).ok_or_else(|| why.to_string())
}

#[derive(Debug, Args)]
pub struct MakeDayArgs {
    /// The file; compressed by gzip if its name ends with .gz.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Length of the day, s; a multiple of seven, else a little longer.
    #[arg(long, value_name = "S", default_value_t = 70, value_parser = number(7..=86_394_u32))]
    pub seconds: u32,
    /// Requests a second.
    #[arg(long, value_name = "RATE", default_value_t = 10_000.0)]
    pub rate: f64,
    /// Stocks.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number(1..=10_000_u32))]
    pub stocks: u32,
    /// How many requests one causes directly, on average: bursts.
    #[arg(long, value_name = "N", default_value_t = 0.7)]
    pub caused: f64,
    /// Seed of everything random; the same seed gives the same draws.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct TortureArgs {
    /// Trials.
    #[arg(long, default_value_t = 20, value_parser = number(1_u32..=100_000))]
    pub trials: u32,
    /// Seed of everything random; the same seed gives the same draws.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Requests a second.
    #[arg(long, default_value_t = 2_000.0)]
    pub rate: f64,
    /// Load of one trial, s.
    #[arg(long, default_value_t = 2.5)]
    pub seconds: f64,
    /// When a request counts as done: none, memory-quorum or disk-quorum.
    #[arg(long)]
    pub durability: Option<Durability>,
    /// gateway, router, mediator or processor.
    #[arg(long)]
    pub role: Option<Role>,
    /// Move instruments to other cells meanwhile, and aim kills at the nodes that do it.
    #[arg(long)]
    pub moves: bool,
    #[command(flatten)]
    pub hosts: HostsArgs,
    /// Folder for logs and journals of trials; those of trials without violations are removed.
    #[arg(long, value_name = "DIR", default_value = "nearmetal-torture")]
    pub out: PathBuf,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder of a run that was recorded, or of one of its rounds.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Replay each cell's journal also from snapshots at this number of random positions.
    #[arg(long, default_value_t = 0, value_name = "N",
        value_parser = number(0_u32..=1_000_000))]
    pub cuts: u32,
    /// Seed of everything random; the same seed gives the same draws.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the requests and answers of the round into a file, a JSON object a line, for other
    /// checkers of histories such as Porcupine.
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}
