//! Certificates of a test's own.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

/// A certificate and its key, PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Signs what it is asked to sign.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = named(&[], name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    pub fn sign(&self, hosts: &[&str]) -> Pair {
        self.sign_until(hosts, 2100)
    }

    /// Valid from 2000 until the end of a year.
    pub fn sign_until(&self, hosts: &[&str], year: i32) -> Pair {
        self.sign_params(named(hosts, "a server"), year)
    }

    /// For a client of this name.
    pub fn sign_as(&self, name: &str) -> Pair {
        self.sign_as_until(name, 2100)
    }

    pub fn sign_as_until(&self, name: &str, year: i32) -> Pair {
        self.sign_params(named(&[], name), year)
    }

    fn sign_params(&self, mut params: CertificateParams, year: i32) -> Pair {
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn named(hosts: &[&str], name: &str) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
