//! `nearmetal exchange secret`: makes the secret of a network, and derives keys from it.

use anyhow::Result;
use nm_auth::{Credentials, CredentialsError, FileError, Right, Secret};

use crate::cli::exchange::{DeriveArgs, NewSecretArgs, SecretCommand};
use crate::exit::{Exit, Stop};
use crate::output;

/// Runs one of the commands.
pub fn run(command: &SecretCommand) -> Result<Exit> {
    let done = match command {
        SecretCommand::New(args) => new(args),
        SecretCommand::Derive(args) => derive(args),
    };
    output::data(&done.map_err(stop)?)?;
    Ok(Exit::Pass)
}

/// An error with its exit code: a file that cannot be written is no fault of the arguments.
fn stop(error: CredentialsError) -> anyhow::Error {
    match error {
        CredentialsError::File(FileError::Create { path, source }) => {
            output::file_error(&path, &source)
        }
        other => Stop::usage(other.to_string()),
    }
}

fn new(NewSecretArgs { file }: &NewSecretArgs) -> Result<String, CredentialsError> {
    Secret::random()?.create(file)?;
    let path = file.display();
    Ok(format!("{path} has a new secret: add `secret = \"{path}\"` to the network's file\n"))
}

fn derive(args: &DeriveArgs) -> Result<String, CredentialsError> {
    let secret = Secret::read(&args.secret)?;
    let mut others = vec![];
    others.extend(args.operator.then_some(Right::Operator));
    others.extend(args.observer.then_some(Right::Observer));
    let keys = secret.keys(args.sessions.map(|(first, last)| first..=last), &others);
    let count = keys.len();
    Credentials::Keys(keys).create(&args.out)?;
    let plural = if count == 1 { "key" } else { "keys" };
    Ok(format!("{} has {count} {plural}\n", args.out.display()))
}
