//! The Login PDUs of an initiator: between the values of [`crate::login`] and the headers of [`crate::pdu`].

use alloc::vec::Vec;

use crate::login::initiator::OwnedLoginRequest;
use crate::login::{LoginResponse, Stage, VERSION};
use crate::pdu::login_request::LoginRequest;
use crate::pdu::{Itt, login_response};
use crate::serial::{CmdSn, StatSn};

/// Returns the header of a Login Request that is sent.
pub(crate) fn header(request: &OwnedLoginRequest, exp_stat_sn: StatSn) -> LoginRequest {
    LoginRequest {
        transit: request.transit,
        continues: request.cont,
        csg: request.csg.0,
        nsg: request.nsg.0,
        //= rfc7143#section-11.12.4
        //# Therefore, both Version-min and Version-max MUST be set to 0x00.
        //= rfc7143#section-11.12.4.1
        //# All Login Requests within the Login Phase MUST carry the same Version-max.
        version_max: VERSION,
        //= rfc7143#section-11.12.4.2
        //# All Login Requests within the Login Phase MUST carry the same Version-min.
        version_min: VERSION,
        isid: request.isid.0,
        //= rfc7143#section-11.12.6
        //# All Login Requests within a Login Phase MUST carry the same TSIH.
        tsih: request.tsih.0,
        itt: Itt(request.itt),
        //= rfc7143#section-11.12.7
        //# All Login Requests within the Login Phase MUST carry the same CID.
        cid: request.cid.0,
        cmd_sn: CmdSn(request.cmd_sn),
        exp_stat_sn,
    }
}

/// Returns the response that a received PDU is.
pub(crate) fn response(pdu: &login_response::LoginResponse, data: Vec<u8>) -> LoginResponse {
    let [status_class, status_detail] = pdu.status.to_be_bytes();
    LoginResponse {
        transit: pdu.transit,
        cont: pdu.continues,
        csg: Stage(pdu.csg),
        nsg: Stage(pdu.nsg),
        version_max: pdu.version_max,
        version_active: pdu.version_active,
        isid: pdu.isid,
        tsih: pdu.tsih,
        itt: pdu.itt.0,
        status_class,
        status_detail,
        data,
    }
}
