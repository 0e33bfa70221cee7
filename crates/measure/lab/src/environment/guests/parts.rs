//! What guests are made of: kernel and image. They are the same for all guests of a process with
//! one choice of kernel, so they are made once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nm_model::GuestSpec;
use nm_model::plan::EnvironmentKind;
use nm_vm::image::{Image, ImageError, ImageParts};
use nm_vm::kernel::{GuestKernel, KernelError};

use crate::environment::guests::unavailable::GuestsUnavailable;

/// Variable that names the kernel of guests for which none is chosen.
pub const KERNEL_VARIABLE: &str = "NEARMETAL_GUEST_KERNEL";

/// What parts depend on.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    kernel: Option<String>,
    /// Whether they need the drivers of physical devices.
    is_passed_through: bool,
}

/// Kernel and image of guests.
#[derive(Debug, Clone)]
pub struct GuestParts {
    /// Their kernel.
    pub kernel: Arc<GuestKernel>,
    /// Their file system.
    pub image: Arc<Image>,
}

impl GuestParts {
    /// The parts of guests as `spec` wants them.
    ///
    /// # Errors
    /// If there is no kernel, or the image cannot be built.
    pub fn of(kind: EnvironmentKind, spec: &GuestSpec) -> Result<GuestParts, GuestsUnavailable> {
        static MADE: Mutex<BTreeMap<Choice, GuestParts>> = Mutex::new(BTreeMap::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let is_passed_through = kind == EnvironmentKind::VmSriov;
        let kernel = named_kernel(spec.kernel.as_deref());
        let choice = Choice { kernel, is_passed_through };
        if let Some(parts) = made.get(&choice) {
            return Ok(parts.clone());
        }
        let kernel = find_kernel(spec)?;
        let build = || {
            let parts = ImageParts::of_this_program(&kernel)?;
            Image::build(&if is_passed_through { parts.with_pass_through() } else { parts })
        };
        let image =
            build().map_err(|error: ImageError| GuestsUnavailable::Image(error.to_string()))?;
        // The image has its modules, so nothing of a package is needed on the disk any more.
        let failed = |error: std::io::Error| GuestsUnavailable::Kernel(error.to_string());
        let kernel = Arc::new(kernel.without_folder().map_err(failed)?);
        let parts = GuestParts { kernel, image: Arc::new(image) };
        made.insert(choice, parts.clone());
        Ok(parts)
    }
}

/// The kernel that the user named for guests: `chosen`, or that of [`KERNEL_VARIABLE`].
pub fn named_kernel(chosen: Option<&str>) -> Option<String> {
    let of_user = || std::env::var(KERNEL_VARIABLE).ok().filter(|text| !text.is_empty());
    chosen.map(str::to_string).or_else(of_user)
}

/// The kernel of guests as `spec` wants them.
///
/// # Errors
/// If there is none, with what to install.
pub fn find_kernel(spec: &GuestSpec) -> Result<GuestKernel, KernelError> {
    GuestKernel::find(named_kernel(spec.kernel.as_deref()).as_deref())
}
