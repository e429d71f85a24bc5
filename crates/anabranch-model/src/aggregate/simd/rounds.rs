//! The 64 steps of MD5 for one block (RFC 1321, 3.4), for registers of any width.
//!
//! The steps are unrolled. A loop would select the round, the word and the rotation in each step,
//! which costs more than the step itself.

/// Applies the 64 steps to the state. `ff`, `gg`, `hh` and `ii` are those of the caller's width.
/// Their two constants are the left rotation of a step, and 32 minus it.
macro_rules! steps {
    ($words:ident, $a:ident, $b:ident, $c:ident, $d:ident) => {
        $a = ff::<7, 25>($a, $b, $c, $d, $words[0], 0xd76a_a478);
        $d = ff::<12, 20>($d, $a, $b, $c, $words[1], 0xe8c7_b756);
        $c = ff::<17, 15>($c, $d, $a, $b, $words[2], 0x2420_70db);
        $b = ff::<22, 10>($b, $c, $d, $a, $words[3], 0xc1bd_ceee);
        $a = ff::<7, 25>($a, $b, $c, $d, $words[4], 0xf57c_0faf);
        $d = ff::<12, 20>($d, $a, $b, $c, $words[5], 0x4787_c62a);
        $c = ff::<17, 15>($c, $d, $a, $b, $words[6], 0xa830_4613);
        $b = ff::<22, 10>($b, $c, $d, $a, $words[7], 0xfd46_9501);
        $a = ff::<7, 25>($a, $b, $c, $d, $words[8], 0x6980_98d8);
        $d = ff::<12, 20>($d, $a, $b, $c, $words[9], 0x8b44_f7af);
        $c = ff::<17, 15>($c, $d, $a, $b, $words[10], 0xffff_5bb1);
        $b = ff::<22, 10>($b, $c, $d, $a, $words[11], 0x895c_d7be);
        $a = ff::<7, 25>($a, $b, $c, $d, $words[12], 0x6b90_1122);
        $d = ff::<12, 20>($d, $a, $b, $c, $words[13], 0xfd98_7193);
        $c = ff::<17, 15>($c, $d, $a, $b, $words[14], 0xa679_438e);
        $b = ff::<22, 10>($b, $c, $d, $a, $words[15], 0x49b4_0821);
        $a = gg::<5, 27>($a, $b, $c, $d, $words[1], 0xf61e_2562);
        $d = gg::<9, 23>($d, $a, $b, $c, $words[6], 0xc040_b340);
        $c = gg::<14, 18>($c, $d, $a, $b, $words[11], 0x265e_5a51);
        $b = gg::<20, 12>($b, $c, $d, $a, $words[0], 0xe9b6_c7aa);
        $a = gg::<5, 27>($a, $b, $c, $d, $words[5], 0xd62f_105d);
        $d = gg::<9, 23>($d, $a, $b, $c, $words[10], 0x0244_1453);
        $c = gg::<14, 18>($c, $d, $a, $b, $words[15], 0xd8a1_e681);
        $b = gg::<20, 12>($b, $c, $d, $a, $words[4], 0xe7d3_fbc8);
        $a = gg::<5, 27>($a, $b, $c, $d, $words[9], 0x21e1_cde6);
        $d = gg::<9, 23>($d, $a, $b, $c, $words[14], 0xc337_07d6);
        $c = gg::<14, 18>($c, $d, $a, $b, $words[3], 0xf4d5_0d87);
        $b = gg::<20, 12>($b, $c, $d, $a, $words[8], 0x455a_14ed);
        $a = gg::<5, 27>($a, $b, $c, $d, $words[13], 0xa9e3_e905);
        $d = gg::<9, 23>($d, $a, $b, $c, $words[2], 0xfcef_a3f8);
        $c = gg::<14, 18>($c, $d, $a, $b, $words[7], 0x676f_02d9);
        $b = gg::<20, 12>($b, $c, $d, $a, $words[12], 0x8d2a_4c8a);
        $a = hh::<4, 28>($a, $b, $c, $d, $words[5], 0xfffa_3942);
        $d = hh::<11, 21>($d, $a, $b, $c, $words[8], 0x8771_f681);
        $c = hh::<16, 16>($c, $d, $a, $b, $words[11], 0x6d9d_6122);
        $b = hh::<23, 9>($b, $c, $d, $a, $words[14], 0xfde5_380c);
        $a = hh::<4, 28>($a, $b, $c, $d, $words[1], 0xa4be_ea44);
        $d = hh::<11, 21>($d, $a, $b, $c, $words[4], 0x4bde_cfa9);
        $c = hh::<16, 16>($c, $d, $a, $b, $words[7], 0xf6bb_4b60);
        $b = hh::<23, 9>($b, $c, $d, $a, $words[10], 0xbebf_bc70);
        $a = hh::<4, 28>($a, $b, $c, $d, $words[13], 0x289b_7ec6);
        $d = hh::<11, 21>($d, $a, $b, $c, $words[0], 0xeaa1_27fa);
        $c = hh::<16, 16>($c, $d, $a, $b, $words[3], 0xd4ef_3085);
        $b = hh::<23, 9>($b, $c, $d, $a, $words[6], 0x0488_1d05);
        $a = hh::<4, 28>($a, $b, $c, $d, $words[9], 0xd9d4_d039);
        $d = hh::<11, 21>($d, $a, $b, $c, $words[12], 0xe6db_99e5);
        $c = hh::<16, 16>($c, $d, $a, $b, $words[15], 0x1fa2_7cf8);
        $b = hh::<23, 9>($b, $c, $d, $a, $words[2], 0xc4ac_5665);
        $a = ii::<6, 26>($a, $b, $c, $d, $words[0], 0xf429_2244);
        $d = ii::<10, 22>($d, $a, $b, $c, $words[7], 0x432a_ff97);
        $c = ii::<15, 17>($c, $d, $a, $b, $words[14], 0xab94_23a7);
        $b = ii::<21, 11>($b, $c, $d, $a, $words[5], 0xfc93_a039);
        $a = ii::<6, 26>($a, $b, $c, $d, $words[12], 0x655b_59c3);
        $d = ii::<10, 22>($d, $a, $b, $c, $words[3], 0x8f0c_cc92);
        $c = ii::<15, 17>($c, $d, $a, $b, $words[10], 0xffef_f47d);
        $b = ii::<21, 11>($b, $c, $d, $a, $words[1], 0x8584_5dd1);
        $a = ii::<6, 26>($a, $b, $c, $d, $words[8], 0x6fa8_7e4f);
        $d = ii::<10, 22>($d, $a, $b, $c, $words[15], 0xfe2c_e6e0);
        $c = ii::<15, 17>($c, $d, $a, $b, $words[6], 0xa301_4314);
        $b = ii::<21, 11>($b, $c, $d, $a, $words[13], 0x4e08_11a1);
        $a = ii::<6, 26>($a, $b, $c, $d, $words[4], 0xf753_7e82);
        $d = ii::<10, 22>($d, $a, $b, $c, $words[11], 0xbd3a_f235);
        $c = ii::<15, 17>($c, $d, $a, $b, $words[2], 0x2ad7_d2bb);
        $b = ii::<21, 11>($b, $c, $d, $a, $words[9], 0xeb86_d391);
    };
}

pub(in crate::aggregate) use steps;
