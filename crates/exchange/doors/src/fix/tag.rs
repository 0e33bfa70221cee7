//! Numbers of the fields that the door reads or writes.

/// Declares tags.
macro_rules! tags {
    ($($name:ident = $number:literal;)+) => {
        $(
            #[doc = concat!("Field ", stringify!($number), ".")]
            pub const $name: u32 = $number;
        )+
    };
}

tags! {
    ACCOUNT = 1;
    AVG_PX = 6;
    BEGIN_SEQ_NO = 7;
    BEGIN_STRING = 8;
    BODY_LENGTH = 9;
    CHECK_SUM = 10;
    CL_ORD_ID = 11;
    CUM_QTY = 14;
    END_SEQ_NO = 16;
    EXEC_ID = 17;
    EXEC_INST = 18;
    LAST_PX = 31;
    LAST_QTY = 32;
    MSG_SEQ_NUM = 34;
    MSG_TYPE = 35;
    NEW_SEQ_NO = 36;
    ORDER_ID = 37;
    ORDER_QTY = 38;
    ORD_STATUS = 39;
    ORD_TYPE = 40;
    ORIG_CL_ORD_ID = 41;
    POSS_DUP_FLAG = 43;
    PRICE = 44;
    REF_SEQ_NUM = 45;
    SENDER_COMP_ID = 49;
    SENDING_TIME = 52;
    SIDE = 54;
    SYMBOL = 55;
    TARGET_COMP_ID = 56;
    TEXT = 58;
    TIME_IN_FORCE = 59;
    TRANSACT_TIME = 60;
    RAW_DATA = 96;
    POSS_RESEND = 97;
    ENCRYPT_METHOD = 98;
    STOP_PX = 99;
    CXL_REJ_REASON = 102;
    ORD_REJ_REASON = 103;
    HEART_BT_INT = 108;
    MIN_QTY = 110;
    MAX_FLOOR = 111;
    TEST_REQ_ID = 112;
    ON_BEHALF_OF_COMP_ID = 115;
    ON_BEHALF_OF_SUB_ID = 116;
    ORIG_SENDING_TIME = 122;
    GAP_FILL_FLAG = 123;
    EXPIRE_TIME = 126;
    DELIVER_TO_COMP_ID = 128;
    DELIVER_TO_SUB_ID = 129;
    RESET_SEQ_NUM_FLAG = 141;
    ON_BEHALF_OF_LOCATION_ID = 144;
    DELIVER_TO_LOCATION_ID = 145;
    NO_RELATED_SYM = 146;
    EXEC_TYPE = 150;
    LEAVES_QTY = 151;
    SECURITY_REQ_ID = 320;
    SECURITY_RESPONSE_ID = 322;
    REF_TAG_ID = 371;
    REF_MSG_TYPE = 372;
    SESSION_REJECT_REASON = 373;
    EXEC_RESTATEMENT_REASON = 378;
    BUSINESS_REJECT_REF_ID = 379;
    BUSINESS_REJECT_REASON = 380;
    CXL_REJ_RESPONSE_TO = 434;
    MASS_CANCEL_REQUEST_TYPE = 530;
    MASS_CANCEL_RESPONSE = 531;
    MASS_CANCEL_REJECT_REASON = 532;
    USERNAME = 553;
    PASSWORD = 554;
    SECURITY_LIST_REQUEST_TYPE = 559;
    SECURITY_REQUEST_RESULT = 560;
    NEXT_EXPECTED_MSG_SEQ_NUM = 789;
    ORD_STATUS_REQ_ID = 790;
    APPL_VER_ID = 1128;
    DEFAULT_APPL_VER_ID = 1137;
    SESSION_STATUS = 1409;
}
