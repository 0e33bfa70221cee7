//! Makes functions of network devices ready for guests, and undoes that: virtual functions of one
//! device, or two devices themselves.
//!
//! Each change is in a journal, on the disk, before it is made (`nm_tune`), and is bounded in time.
//! Dropping [`Prepared`] undoes the changes, the last one first; after a kill -9, [`undo`] does. A
//! restart of the machine resets all of them, which the next [`undo`] notes in the journal.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use nm_model::GuestId;
use nm_model::pci_address::PciAddress;
use nm_settings::SettingId;
use nm_settings::target::PciSetting;
use nm_sys::ethtool::Links;
use nm_sys::hostfiles::HostFiles;
use nm_tune::apply::{Outcome, apply_some};
use nm_tune::journal::{FileLog, Folder, Lock};
use nm_tune::machine::{HostMachine, Machine};
use nm_tune::plan::StepChange;
use nm_tune::record::{Begin, FORMAT, RunId};
use nm_tune::run::{Run, Status};
use nm_tune::undo::{Choices, UndoError, Undone};

use crate::network::hardware_address;
use crate::nic::{self, Nic};
use crate::refusal::Refusal;
use crate::{function_address, vfio};

/// Where the journals are kept.
pub const JOURNAL_FOLDER: &str = "/var/lib/nearmetal/lab";

/// A host whose devices are handed out: this machine, or a tree of files in its place.
pub struct Host {
    /// Its settings.
    pub machine: Box<dyn Machine>,
    /// Whether system calls apply to it: it is this machine.
    pub is_live: bool,
    /// What `SSH_CONNECTION` has.
    pub own_connection: Option<String>,
    /// Folder in place of `/`.
    pub root: String,
}

impl Host {
    /// The host whose files are below `root`; this machine if that is `/`.
    ///
    /// # Errors
    /// If there is no such folder.
    pub fn open(root: &Path) -> Result<Host, Refusal> {
        let system = |action| move |source| Refusal::System { action, source };
        let full = root.canonicalize().map_err(system("open the root"))?;
        let is_live = full == Path::new("/");
        let machine: Box<dyn Machine> = match is_live {
            true => Box::new(HostMachine::live().map_err(system("open a socket"))?),
            false => Box::new(HostMachine::recorded(&full)),
        };
        let own_connection = std::env::var("SSH_CONNECTION").ok().filter(|_| is_live);
        let root = full.to_string_lossy().into_owned();
        Ok(Host { machine, is_live, own_connection, root })
    }

    fn files(&self) -> &HostFiles {
        self.machine.files()
    }

    /// A device by its name, if nobody uses it.
    fn unused(&self, name: &str) -> Result<Nic, Refusal> {
        let links = if self.is_live { Links::new().ok() } else { None };
        let known = |link: &str| -> Vec<IpAddr> {
            links.as_ref().map(|links| links.addresses(link)).unwrap_or_default()
        };
        let nic = nic::find(self.files(), name, &known)?;
        match nic.refusal(self.own_connection.as_deref()) {
            None => Ok(nic),
            Some(refusal) => Err(refusal),
        }
    }

    fn set_function_address(&self, nic: &Nic, guest: GuestId) -> Result<(), Refusal> {
        if !self.is_live {
            return Ok(());
        }
        let (address, index) = (hardware_address(guest), guest.index() as u32);
        function_address::set(&nic.name, index, address)
            .map_err(|source| Refusal::HardwareAddress { name: nic.name.clone(), index, source })
    }
}

/// The functions that guests get. Dropping it undoes what was changed.
pub struct Prepared {
    /// Addresses, in the order of [`GuestId::all`].
    pub addresses: Vec<PciAddress>,
    /// Hardware addresses, where they were set or are known.
    pub macs: Vec<Option<[u8; 6]>>,
    /// What was done, in sentences.
    pub notes: Vec<String>,
    session: Session,
}

/// The right to change devices, and the journal of the changes.
struct Session {
    host: Host,
    log: FileLog,
    run: Run,
    /// Held until the changes are undone.
    _lock: Lock,
}

/// Makes the functions of `nics` for `pairs` pairs of guests ready on the host below `root`:
/// virtual functions of the only one, or for one pair both themselves.
///
/// # Errors
/// Why not; what was changed until then is undone.
pub fn prepare(root: &Path, nics: &[String], pairs: u32) -> Result<Prepared, Refusal> {
    prepare_on(Host::open(root)?, Path::new(JOURNAL_FOLDER), nics, pairs)
}

/// The same on a given host, with the journals in `state`.
///
/// # Errors
/// Those of [`prepare`].
pub fn prepare_on(
    mut host: Host,
    state: &Path,
    nics: &[String],
    pairs: u32,
) -> Result<Prepared, Refusal> {
    if let Some(folder) = Folder::existing(state)? {
        // Before the devices, which look used if a run was not undone.
        let lock = folder.lock()?;
        check_undone(&mut host, &folder, &lock)?;
    }
    let devices = check(&host, nics, pairs)?;
    let mut session = Session::begin(host, state)?;
    let prepared = match devices.as_slice() {
        [one] => session.make_functions(one, pairs),
        _ => session.hand_over_devices(&devices),
    };
    match prepared {
        Ok((addresses, macs, notes)) => Ok(Prepared { addresses, macs, notes, session }),
        Err(refusal) => {
            // The reason matters more than a failure to undo, which the journal keeps.
            let _ = session.undo();
            Err(refusal)
        }
    }
}

/// The devices, if all that is needed is there and nobody uses them. Changes nothing.
///
/// # Errors
/// Why not.
pub fn check(host: &Host, nics: &[String], pairs: u32) -> Result<Vec<Nic>, Refusal> {
    if !(1..=2).contains(&nics.len()) {
        return Err(Refusal::Count(nics.len()));
    }
    if nics.len() == 2 && pairs > 1 {
        return Err(Refusal::Pairs(pairs));
    }
    let devices: Vec<Nic> =
        nics.iter().map(|name| host.unused(name)).collect::<Result<_, Refusal>>()?;
    if let [one, other] = devices.as_slice()
        && one.address == other.address
    {
        return Err(Refusal::Twice(one.name.clone()));
    }
    if let [one] = devices.as_slice()
        && one.functions_max.unwrap_or(0) < 2 * pairs
    {
        let (needed, count_max) = (2 * pairs, one.functions_max.unwrap_or(0));
        return Err(Refusal::TooFewFunctions { name: one.name.clone(), needed, count_max });
    }
    vfio::check(host.files())?;
    Ok(devices)
}

type Ready = (Vec<PciAddress>, Vec<Option<[u8; 6]>>, Vec<String>);

impl Session {
    fn begin(host: Host, state: &Path) -> Result<Session, Refusal> {
        let folder = Folder::open(state)?;
        let lock = folder.lock()?;
        let started = Timestamp::now();
        let random = nm_sys::random::bytes().map(u32::from_ne_bytes);
        let random = random.map_err(|source| Refusal::System { action: "get a number", source })?;
        // Ids are sorted by their text, so the time has parts of a second.
        let id = format!("{}-{random:08x}", started.strftime("%Y%m%dT%H%M%S-%6f"));
        let invalid = |error| Refusal::System {
            action: "name the run",
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        };
        let begin = Begin {
            format: FORMAT,
            run: RunId::try_from(id).map_err(invalid)?,
            started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            root: host.root.clone(),
            origin: host.machine.origin()?,
            confirm_within_s: None,
            name: None,
        };
        let log = folder.begin(&begin, &lock)?;
        Ok(Session { host, log, run: Run::begun(begin), _lock: lock })
    }

    /// Makes changes. One that the kernel refuses is an error.
    fn apply(&mut self, changes: &[StepChange]) -> Result<(), Refusal> {
        let never = AtomicBool::new(false);
        let machine = self.host.machine.as_mut();
        let applied = apply_some(machine, &mut self.log, &mut self.run, changes, &never)?;
        for (step, target, outcome) in applied.outcomes {
            let reason = match outcome {
                Outcome::Refused(reason) => reason,
                Outcome::Rounded { wanted, read, .. } => {
                    format!("the kernel made {read} of {wanted}")
                }
                // The state of a link goes with its driver, which is taken away next.
                _ => continue,
            };
            return Err(Refusal::Kernel { step, target: target.to_string(), reason });
        }
        Ok(())
    }

    fn make_functions(&mut self, nic: &Nic, pairs: u32) -> Result<Ready, Refusal> {
        let guests = GuestId::all(pairs);
        let address = nic.address;
        let folder = format!("/sys/bus/pci/devices/{address}");
        let of_functions =
            |setting, word| vfio::change(SettingId::PciFunctions, address, setting, word);
        let count = guests.len().to_string();
        let mut changes = vec![of_functions(PciSetting::Functions, &count)];
        if self.host.files().exists(&format!("{folder}/sriov_drivers_autoprobe")) {
            // Else the host's driver takes the functions as soon as they are there.
            changes.insert(0, of_functions(PciSetting::FunctionsAutoprobe, "0"));
        }
        self.apply(&changes)?;
        let mut functions: Vec<PciAddress> = vec![];
        for index in 0..guests.len() {
            let link = self.host.files().link_name(&format!("{folder}/virtfn{index}"));
            let function = link.and_then(|name| name.parse().ok());
            functions.push(function.ok_or_else(|| Refusal::Kernel {
                step: SettingId::PciFunctions,
                target: format!("{folder}/virtfn{index}"),
                reason: "the virtual function does not appear".to_string(),
            })?);
        }
        for (&guest, &function) in guests.iter().zip(&functions) {
            let (group, mates) = nic::group(self.host.files(), function);
            if group.is_none() || !mates.is_empty() {
                return Err(nic::shared(function, group, &mates));
            }
            self.host.set_function_address(nic, guest)?;
            self.apply(&vfio::hand_over(function, false))?;
        }
        let names: Vec<String> = functions.iter().map(PciAddress::to_string).collect();
        let names = names.join(" and ");
        let notes = vec![format!("virtual functions {names} of {} are passed through", nic.name)];
        Ok((functions, guests.into_iter().map(hardware_address).map(Some).collect(), notes))
    }

    fn hand_over_devices(&mut self, devices: &[Nic]) -> Result<Ready, Refusal> {
        let [client, server] = devices else { return Err(Refusal::Count(devices.len())) };
        let macs = [client, server].map(|nic| {
            let text = self.host.files().text(&format!("/sys/class/net/{}/address", nic.name))?;
            nm_sys::hardware_address::parse(&text)
        });
        for nic in [client, server] {
            self.apply(&vfio::hand_over(nic.address, true))?;
        }
        let note = |nic: &Nic| format!("{} ({}) is passed through itself", nic.name, nic.address);
        let notes = vec![note(client), note(server)];
        Ok((vec![client.address, server.address], macs.to_vec(), notes))
    }

    fn undo(&mut self) -> Result<Undone, UndoError> {
        let never = AtomicBool::new(false);
        // Nobody is there to decide: what cannot be put back stays in the journal.
        let choices = Choices { goes_on: true, ..Choices::default() };
        let machine = self.host.machine.as_mut();
        nm_tune::undo(machine, &mut self.log, &mut self.run, &choices, &never)
    }
}

/// Refuses to begin while a run is not undone. Those that a restart has ended are closed.
fn check_undone(host: &mut Host, folder: &Folder, lock: &Lock) -> Result<(), Refusal> {
    let boot_id = host.machine.origin()?.boot_id;
    for mut run in folder.runs()? {
        if run.begin.root != host.root || run.status() == Status::Closed {
            continue;
        }
        if run.changes.iter().any(|change| change.intent.origin.boot_id == boot_id) {
            return Err(Refusal::Unfinished(run.begin.run));
        }
        let mut log = folder.resume(&run.begin.run, lock)?;
        let (never, choices) = (AtomicBool::new(false), Choices::default());
        nm_tune::undo(host.machine.as_mut(), &mut log, &mut run, &choices, &never)?;
    }
    Ok(())
}

impl Prepared {
    /// Undoes what was changed, and says what could not be: that stays in the journal for
    /// `nearmetal lab undo`. The programs that use the functions must have ended.
    ///
    /// # Errors
    /// If the journal or the machine fails.
    pub fn finish(mut self) -> Result<Vec<String>, UndoError> {
        Ok(self.session.undo()?.left_open)
    }

    /// The run, as `nearmetal lab undo` names it.
    pub fn run_id(&self) -> &RunId {
        &self.session.run.begin.run
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if self.session.run.status() != Status::Closed && !self.session.run.is_undo_begun {
            // What fails stays in the journal, where `nearmetal lab undo` finds it.
            let _ = self.session.undo();
        }
    }
}

/// Undoes all runs that are open, the latest first.
///
/// # Errors
/// Where it had to stop; what was undone until then is in the journals.
pub fn undo(
    host: &mut Host,
    state: &Path,
    choices: &Choices,
    interrupted: &AtomicBool,
) -> Result<Vec<(RunId, Undone)>, Refusal> {
    let Some(folder) = Folder::existing(state)? else { return Ok(vec![]) };
    let lock = folder.lock()?;
    let mut all = vec![];
    for mut run in folder.runs()?.into_iter().rev() {
        if run.begin.root != host.root || run.status() == Status::Closed {
            continue;
        }
        let mut log = folder.resume(&run.begin.run, &lock)?;
        let undone =
            nm_tune::undo(host.machine.as_mut(), &mut log, &mut run, choices, interrupted)?;
        let is_interrupted = undone.is_interrupted;
        all.push((run.begin.run.clone(), undone));
        if is_interrupted {
            break;
        }
    }
    Ok(all)
}
