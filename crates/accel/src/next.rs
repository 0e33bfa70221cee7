//! The next definition, usually glibc's own, of a function that this library replaces.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function of the C library, looked up once by name; `F` is its type, an `extern "C" fn`.
pub struct Next<F> {
    name: &'static CStr,
    address: AtomicUsize,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// The function `name`, not looked up yet.
    ///
    /// # Safety
    /// `F` must be the type of a function pointer that fits the C declaration of `name`.
    pub const unsafe fn new(name: &'static CStr) -> Next<F> {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        Next { name, address: AtomicUsize::new(0), kind: PhantomData }
    }

    /// The function, or none if the C library does not have it.
    ///
    /// The first call takes the loader's lock, so the constructor looks up every function that may
    /// be needed in a signal handler or in the child of a fork.
    pub fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            // SAFETY: the name ends in NUL; RTLD_NEXT is valid in any loaded library.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }.addr();
            self.address.store(address, Ordering::Relaxed);
        }
        if address == 0 {
            return None;
        }
        // SAFETY: the caller of `new` guarantees that `F` is a function pointer type that fits this
        // symbol; it has the size of an address (checked in `new`), and the address is not null.
        Some(unsafe { std::mem::transmute_copy::<usize, F>(&address) })
    }
}

/// Declares functions of the C library as statics, and `prepare_functions`, which looks all of them
/// up. Each type is that of the declaration in the C library's header; of a function that is only
/// jumped to, any.
macro_rules! next_functions {
    ($($name:ident: $kind:ty = $text:literal;)*) => {
        // SAFETY: the user of the macro states the type of the C declaration, as it demands.
        $(static $name: $crate::next::Next<$kind> = unsafe { $crate::next::Next::new($text) };)*

        /// Looks the C library's functions up here, because a signal handler must not.
        fn prepare_functions() {
            $($name.get();)*
        }
    };
}
pub(crate) use next_functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_c_library_has_and_nothing_else() {
        // SAFETY: getpid takes nothing and gives an int.
        let known: Next<extern "C" fn() -> libc::pid_t> = unsafe { Next::new(c"getpid") };
        assert_eq!(known.get().map(|getpid| getpid()), i32::try_from(std::process::id()).ok());
        // SAFETY: the function does not exist and is never called.
        let unknown: Next<extern "C" fn()> = unsafe { Next::new(c"no_such_function_in_libc") };
        assert!(unknown.get().is_none());
    }
}
