//! The deliberate faults in `mutations/` fit the code and the guarantees that they break.

use std::path::Path;

use crate::mutations::list::{self, Mutation};
use crate::tidy::fault::{Check, Fault};
use crate::tidy::guarantees;
use crate::tidy::workspace::Files;

pub fn check(files: &Files) -> Vec<Fault> {
    let lists = files.iter().filter(|(path, _)| path.starts_with(list::FOLDER));
    lists.flat_map(|(path, text)| faults_of(files, path, text)).collect()
}

fn faults_of(files: &Files, path: &Path, text: &str) -> Vec<Fault> {
    let fault = |text: String| Fault::new(Check::Mutations, path, 1, text);
    match list::parse(path, text) {
        Ok(mutations) => {
            mutations.iter().filter_map(|one| fault_of(files, one)).map(fault).collect()
        }
        Err(error) => vec![fault(format!("{error:#}"))],
    }
}

fn fault_of(files: &Files, mutation: &Mutation) -> Option<String> {
    let Mutation { guarantee, fault, file, test, .. } = mutation;
    let Some(text) = files.get(file) else {
        return Some(format!("{guarantee}, `{fault}`: there is no file {}", file.display()));
    };
    if let Err(error) = mutation.applied(text) {
        return Some(format!("{guarantee}: in {}: {error:#}", file.display()));
    }
    let is_named = guarantees::tests_of(files, guarantee).contains(test);
    (!is_named).then(|| format!("{guarantee} of SPECIFICATION.md does not name `{test}`; add it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(find: &str, test: &str) -> Vec<String> {
        let list = format!(
            "[[mutation]]\nguarantee = 'A1'\nfault = 'it does not hold'\nfile = 'a.rs'\n\
             find = '{find}'\nreplace = 'nothing'\ntest = '{test}'\n"
        );
        let files = Files::from([
            ("SPECIFICATION.md".into(), "| A1 | It holds. | any | `nm-a::it_holds` |\n".into()),
            ("a.rs".into(), "fn f() {}\n".into()),
            ("mutations/A.toml".into(), list),
        ]);
        check(&files).iter().map(Fault::to_string).collect()
    }

    #[test]
    fn a_mutation_that_fits_neither_code_nor_guarantee_is_a_fault() {
        assert_eq!(faults("fn f() {}", "nm-a::it_holds"), Vec::<String>::new());
        assert!(faults("fn g() {}", "nm-a::it_holds")[0].contains("occurs 0 times"));
        assert!(faults("fn f() {}", "nm-a::other")[0].contains("does not name `nm-a::other`"));
    }
}
