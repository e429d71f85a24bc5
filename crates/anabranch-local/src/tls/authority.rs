//! The certificate authority of a local stream: created at start, or kept in a folder.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, RootCertStore};

use super::error::{TlsError, read};
use super::{CertificateIdentity, provider};

/// Validity of the authority's own certificate, in days.
const AUTHORITY_DAYS: u32 = 3_650;
/// Validity of a server certificate, in days. Some clients refuse more than 825.
const SERVER_DAYS: u32 = 800;
/// Names of this machine, including the name by which its containers see it.
const NAMES: [&str; 2] = ["localhost", "host.docker.internal"];

/// A certificate authority that signs the certificates of one server.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The authority's own certificate, which clients trust.
    pem: String,
}

impl Authority {
    /// Creates a new authority.
    pub(super) fn new() -> Result<Self, TlsError> {
        let key = KeyPair::generate().map_err(TlsError::made)?;
        let params = params();
        let pem = params.self_signed(&key).map_err(TlsError::made)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Opens the authority kept in a folder, or creates one there.
    pub(super) fn kept_in(folder: &Path) -> Result<Self, TlsError> {
        let (pem_file, key_file) = (folder.join("ca.pem"), folder.join("ca.key"));
        let (has_pem, has_key) = (pem_file.exists(), key_file.exists());
        let bad = |reason: String| TlsError::Authority { folder: folder.to_owned(), reason };
        match (has_pem, has_key) {
            (true, true) => {
                let pem = read(&pem_file)?;
                let key = KeyPair::from_pem(&read(&key_file)?);
                let key = key.map_err(|problem| bad(format!("ca.key: {problem}")))?;
                // All our authorities have the same name, so the key alone determines the issuer.
                let kept = Self { issuer: Issuer::new(params(), key), pem };
                kept.verify().map_err(bad)?;
                Ok(kept)
            }
            (true, false) => Err(bad("ca.key is missing".to_owned())),
            // A start that was killed between the two writes leaves only the key. No client can
            // have trusted that authority.
            (false, _) => {
                let made = Self::new()?;
                fs::create_dir_all(folder)
                    .and_then(|()| write(&key_file, &made.issuer.key().serialize_pem(), 0o600))
                    .map_err(|source| TlsError::File { verb: "write", file: key_file, source })?;
                write(&pem_file, &made.pem, 0o644).map_err(|source| TlsError::File {
                    verb: "write",
                    file: pem_file,
                    source,
                })?;
                Ok(made)
            }
        }
    }

    /// Issues a certificate for a server on this machine that listens on `host`.
    pub(super) fn issue(&self, host: IpAddr) -> Result<CertificateIdentity, TlsError> {
        let mut params =
            CertificateParams::new(NAMES.map(str::to_owned)).map_err(TlsError::made)?;
        let mut addresses: Vec<IpAddr> =
            vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        if !host.is_unspecified() && !addresses.contains(&host) {
            addresses.push(host);
        }
        params.subject_alt_names.extend(addresses.into_iter().map(SanType::IpAddress));
        params.distinguished_name = named("anabranch local");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, SERVER_DAYS);
        let key = KeyPair::generate().map_err(TlsError::made)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(TlsError::made)?;
        Ok(CertificateIdentity {
            chain: vec![certificate.into()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            ca_pem: self.pem.clone(),
        })
    }

    /// Checks that a client that trusts the certificate accepts certificates signed with the key.
    fn verify(&self) -> Result<(), String> {
        let text = |problem: &dyn std::fmt::Display| format!("ca.pem: {problem}");
        let own = CertificateDer::from_pem_slice(self.pem.as_bytes()).map_err(|e| text(&e))?;
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).map_err(|e| text(&e))?;
        let identity = self.issue(Ipv4Addr::LOCALHOST.into()).map_err(|e| text(&e))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.build().map_err(|e| text(&e))?;
        let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
        let now = UnixTime::now();
        match verifier.verify_server_cert(&identity.chain[0], &[], &name, &[], now) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InvalidCertificate(
                CertificateError::BadSignature | CertificateError::UnknownIssuer,
            )) => Err("ca.pem and ca.key do not match".to_owned()),
            Err(problem) => Err(text(&problem)),
        }
    }
}

/// Returns the parameters of the authority's own certificate.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("anabranch local CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, AUTHORITY_DAYS);
    params
}

fn named(common_name: &str) -> rcgen::DistinguishedName {
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Sets the validity period. It starts yesterday, because the clock of a container may be behind.
fn valid_for(params: &mut CertificateParams, days: u32) {
    const DAY: Duration = Duration::from_hours(24);
    let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let yesterday = rcgen::date_time_ymd(1970, 1, 1) + since_epoch.saturating_sub(DAY);
    params.not_before = yesterday;
    params.not_after = yesterday + DAY * days;
}

/// Writes a file under another name and renames it, so that it is never partly written.
fn write(file: &Path, text: &str, mode: u32) -> io::Result<()> {
    let unfinished = file.with_extension("new");
    let mut open = create(&unfinished, mode)?;
    open.write_all(text.as_bytes())?;
    open.sync_all()?;
    fs::rename(unfinished, file)
}

/// Creates a file with exactly the permissions in `mode`, whatever the umask.
#[cfg(unix)]
fn create(file: &Path, mode: u32) -> io::Result<File> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    let mut options = File::options();
    let created = options.create(true).write(true).truncate(true).mode(mode).open(file)?;
    created.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(created)
}

#[cfg(not(unix))]
fn create(file: &Path, _mode: u32) -> io::Result<File> {
    File::create(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_folder_keeps_its_authority_and_its_key_is_private() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let first = Authority::kept_in(&folder).unwrap();
        let second = Authority::kept_in(&folder).unwrap();
        assert_eq!(first.pem, second.pem);
        for (name, mode) in [("ca.key", 0o600), ("ca.pem", 0o644)] {
            let permissions = folder.join(name).metadata().unwrap().permissions();
            assert_eq!(permissions.mode() & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn a_folder_that_was_meddled_with_is_refused_by_name() {
        let other = KeyPair::generate().unwrap().serialize_pem();
        for (file, text, reason) in [
            ("ca.key", Some(other.as_str()), "ca.pem and ca.key do not match"),
            ("ca.key", Some("garbage"), "ca.key: "),
            ("ca.key", None, "ca.key is missing"),
            ("ca.pem", Some("garbage"), "ca.pem: "),
        ] {
            let folder = tempfile::tempdir().unwrap();
            Authority::kept_in(folder.path()).unwrap();
            match text {
                Some(text) => fs::write(folder.path().join(file), text).unwrap(),
                None => fs::remove_file(folder.path().join(file)).unwrap(),
            }
            let Err(refused) = Authority::kept_in(folder.path()) else { panic!("{reason}") };
            let refused = refused.to_string();
            assert!(refused.contains(reason), "{refused}");
            assert!(refused.contains("delete ca.pem and ca.key"), "{refused}");
            assert!(refused.contains(&folder.path().display().to_string()), "{refused}");
        }
    }

    #[test]
    fn a_start_that_was_killed_between_the_two_files_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.key"), "half").unwrap();
        let made = Authority::kept_in(folder.path()).unwrap();
        assert_eq!(made.pem, Authority::kept_in(folder.path()).unwrap().pem);
    }
}
