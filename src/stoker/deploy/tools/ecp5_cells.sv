// What the ECP5's multiplier and block memory compute, as far as yosys uses them: its own models of these two are empty.
// A lookup table is written shorter than there, for the simulator's sake.
// Source: Lattice FPGA-TN-02205 (sysDSP) and FPGA-TN-02204 (memory). Modes that yosys does not use are refused.
// Designs have no reset between two clocks, so RESETMODE makes no difference.
//
// A word that is read by one port while the other one writes it is undefined in the device. Here it comes out inverted,
// so that a design that depends on it gives wrong numbers.
module LUT4 (input A, B, C, D, output Z);
    parameter [15:0] INIT = 16'd0;
    assign Z = INIT[{D, C, B, A}];
endmodule

module MULT18X18D (
    input A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0,
    input B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0,
    input C17, C16, C15, C14, C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2, C1, C0,
    input SIGNEDA, SIGNEDB, SOURCEA, SOURCEB,
    output P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18,
    output P17, P16, P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
);
    wire [17:0] a = {A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0};
    wire [17:0] b = {B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0};
    wire signed [18:0] signed_a = {SIGNEDA & a[17], a};
    wire signed [18:0] signed_b = {SIGNEDB & b[17], b};
    wire signed [37:0] product = signed_a * signed_b;
    assign {
        P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18,
        P17, P16, P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
    } = product[35:0];
endmodule

module DP16KD (
    input DIA17, DIA16, DIA15, DIA14, DIA13, DIA12, DIA11, DIA10, DIA9, DIA8, DIA7, DIA6, DIA5, DIA4, DIA3, DIA2,
    input DIA1, DIA0,
    input ADA13, ADA12, ADA11, ADA10, ADA9, ADA8, ADA7, ADA6, ADA5, ADA4, ADA3, ADA2, ADA1, ADA0,
    input CEA, OCEA, CLKA, WEA, RSTA, CSA2, CSA1, CSA0,
    output DOA17, DOA16, DOA15, DOA14, DOA13, DOA12, DOA11, DOA10, DOA9, DOA8, DOA7, DOA6, DOA5, DOA4, DOA3, DOA2,
    output DOA1, DOA0,
    input DIB17, DIB16, DIB15, DIB14, DIB13, DIB12, DIB11, DIB10, DIB9, DIB8, DIB7, DIB6, DIB5, DIB4, DIB3, DIB2,
    input DIB1, DIB0,
    input ADB13, ADB12, ADB11, ADB10, ADB9, ADB8, ADB7, ADB6, ADB5, ADB4, ADB3, ADB2, ADB1, ADB0,
    input CEB, OCEB, CLKB, WEB, RSTB, CSB2, CSB1, CSB0,
    output DOB17, DOB16, DOB15, DOB14, DOB13, DOB12, DOB11, DOB10, DOB9, DOB8, DOB7, DOB6, DOB5, DOB4, DOB3, DOB2,
    output DOB1, DOB0
);
    parameter DATA_WIDTH_A = 18;
    parameter DATA_WIDTH_B = 18;
    parameter REGMODE_A = "NOREG";
    parameter REGMODE_B = "NOREG";
    parameter RESETMODE = "SYNC";
    parameter ASYNC_RESET_RELEASE = "SYNC";
    parameter CSDECODE_A = "0b000";
    parameter CSDECODE_B = "0b000";
    parameter WRITEMODE_A = "NORMAL";
    parameter WRITEMODE_B = "NORMAL";
    parameter CLKAMUX = "CLKA";
    parameter CLKBMUX = "CLKB";
    parameter GSR = "AUTO";
    parameter [319:0] INITVAL_00 = 320'd0;
    parameter [319:0] INITVAL_01 = 320'd0;
    parameter [319:0] INITVAL_02 = 320'd0;
    parameter [319:0] INITVAL_03 = 320'd0;
    parameter [319:0] INITVAL_04 = 320'd0;
    parameter [319:0] INITVAL_05 = 320'd0;
    parameter [319:0] INITVAL_06 = 320'd0;
    parameter [319:0] INITVAL_07 = 320'd0;
    parameter [319:0] INITVAL_08 = 320'd0;
    parameter [319:0] INITVAL_09 = 320'd0;
    parameter [319:0] INITVAL_0A = 320'd0;
    parameter [319:0] INITVAL_0B = 320'd0;
    parameter [319:0] INITVAL_0C = 320'd0;
    parameter [319:0] INITVAL_0D = 320'd0;
    parameter [319:0] INITVAL_0E = 320'd0;
    parameter [319:0] INITVAL_0F = 320'd0;
    parameter [319:0] INITVAL_10 = 320'd0;
    parameter [319:0] INITVAL_11 = 320'd0;
    parameter [319:0] INITVAL_12 = 320'd0;
    parameter [319:0] INITVAL_13 = 320'd0;
    parameter [319:0] INITVAL_14 = 320'd0;
    parameter [319:0] INITVAL_15 = 320'd0;
    parameter [319:0] INITVAL_16 = 320'd0;
    parameter [319:0] INITVAL_17 = 320'd0;
    parameter [319:0] INITVAL_18 = 320'd0;
    parameter [319:0] INITVAL_19 = 320'd0;
    parameter [319:0] INITVAL_1A = 320'd0;
    parameter [319:0] INITVAL_1B = 320'd0;
    parameter [319:0] INITVAL_1C = 320'd0;
    parameter [319:0] INITVAL_1D = 320'd0;
    parameter [319:0] INITVAL_1E = 320'd0;
    parameter [319:0] INITVAL_1F = 320'd0;
    parameter [319:0] INITVAL_20 = 320'd0;
    parameter [319:0] INITVAL_21 = 320'd0;
    parameter [319:0] INITVAL_22 = 320'd0;
    parameter [319:0] INITVAL_23 = 320'd0;
    parameter [319:0] INITVAL_24 = 320'd0;
    parameter [319:0] INITVAL_25 = 320'd0;
    parameter [319:0] INITVAL_26 = 320'd0;
    parameter [319:0] INITVAL_27 = 320'd0;
    parameter [319:0] INITVAL_28 = 320'd0;
    parameter [319:0] INITVAL_29 = 320'd0;
    parameter [319:0] INITVAL_2A = 320'd0;
    parameter [319:0] INITVAL_2B = 320'd0;
    parameter [319:0] INITVAL_2C = 320'd0;
    parameter [319:0] INITVAL_2D = 320'd0;
    parameter [319:0] INITVAL_2E = 320'd0;
    parameter [319:0] INITVAL_2F = 320'd0;
    parameter [319:0] INITVAL_30 = 320'd0;
    parameter [319:0] INITVAL_31 = 320'd0;
    parameter [319:0] INITVAL_32 = 320'd0;
    parameter [319:0] INITVAL_33 = 320'd0;
    parameter [319:0] INITVAL_34 = 320'd0;
    parameter [319:0] INITVAL_35 = 320'd0;
    parameter [319:0] INITVAL_36 = 320'd0;
    parameter [319:0] INITVAL_37 = 320'd0;
    parameter [319:0] INITVAL_38 = 320'd0;
    parameter [319:0] INITVAL_39 = 320'd0;
    parameter [319:0] INITVAL_3A = 320'd0;
    parameter [319:0] INITVAL_3B = 320'd0;
    parameter [319:0] INITVAL_3C = 320'd0;
    parameter [319:0] INITVAL_3D = 320'd0;
    parameter [319:0] INITVAL_3E = 320'd0;
    parameter [319:0] INITVAL_3F = 320'd0;
    wire [13:0] ada = {ADA13, ADA12, ADA11, ADA10, ADA9, ADA8, ADA7, ADA6, ADA5, ADA4, ADA3, ADA2, ADA1, ADA0};
    wire [13:0] adb = {ADB13, ADB12, ADB11, ADB10, ADB9, ADB8, ADB7, ADB6, ADB5, ADB4, ADB3, ADB2, ADB1, ADB0};
    wire [17:0] dia = {
        DIA17, DIA16, DIA15, DIA14, DIA13, DIA12, DIA11, DIA10, DIA9, DIA8, DIA7, DIA6, DIA5, DIA4, DIA3, DIA2, DIA1, DIA0
    };
    wire [17:0] dib = {
        DIB17, DIB16, DIB15, DIB14, DIB13, DIB12, DIB11, DIB10, DIB9, DIB8, DIB7, DIB6, DIB5, DIB4, DIB3, DIB2, DIB1, DIB0
    };
    localparam [64*320-1:0] INIT = {
        INITVAL_3F, INITVAL_3E, INITVAL_3D, INITVAL_3C, INITVAL_3B, INITVAL_3A, INITVAL_39, INITVAL_38,
        INITVAL_37, INITVAL_36, INITVAL_35, INITVAL_34, INITVAL_33, INITVAL_32, INITVAL_31, INITVAL_30,
        INITVAL_2F, INITVAL_2E, INITVAL_2D, INITVAL_2C, INITVAL_2B, INITVAL_2A, INITVAL_29, INITVAL_28,
        INITVAL_27, INITVAL_26, INITVAL_25, INITVAL_24, INITVAL_23, INITVAL_22, INITVAL_21, INITVAL_20,
        INITVAL_1F, INITVAL_1E, INITVAL_1D, INITVAL_1C, INITVAL_1B, INITVAL_1A, INITVAL_19, INITVAL_18,
        INITVAL_17, INITVAL_16, INITVAL_15, INITVAL_14, INITVAL_13, INITVAL_12, INITVAL_11, INITVAL_10,
        INITVAL_0F, INITVAL_0E, INITVAL_0D, INITVAL_0C, INITVAL_0B, INITVAL_0A, INITVAL_09, INITVAL_08,
        INITVAL_07, INITVAL_06, INITVAL_05, INITVAL_04, INITVAL_03, INITVAL_02, INITVAL_01, INITVAL_00
    };

    generate
        if (
            REGMODE_A != "NOREG" || REGMODE_B != "NOREG" || CSDECODE_A != "0b000" ||
            CSDECODE_B != "0b000" || CLKAMUX != "CLKA" || CLKBMUX != "CLKB"
        ) begin : refused
            mode_of_DP16KD_without_a_model refuse ();
        end
    endgenerate

    // 512 lines of 4 x 9 bits; words of less than 9 lie in the lower 8.
    reg [35:0] lines [0:511];
    integer i;
    initial for (i = 0; i < 512; i = i + 1) lines[i] = {INIT[(2*i+1)*20 +: 18], INIT[2*i*20 +: 18]};

    // The bits of a line that an access is about.
    function [35:0] touched(input integer width, input [13:0] at);
        case (width)
            36: touched = {{9{at[3]}}, {9{at[2]}}, {9{at[1]}}, {9{at[0]}}};
            18: touched = {18'd0, {9{at[1]}}, {9{at[0]}}} << (at[4] ? 18 : 0);
            9: touched = 36'h1ff << (9 * at[4:3]);
            4: touched = 36'hf << (9 * at[4:3] + 4 * at[2]);
            2: touched = 36'h3 << (9 * at[4:3] + 2 * at[2:1]);
            default: touched = 36'h1 << (9 * at[4:3] + at[2:0]);
        endcase
    endfunction
    function [35:0] placed(input integer width, input [13:0] at, input [35:0] data);
        case (width)
            36: placed = data;
            18: placed = {2{data[17:0]}};
            9: placed = {4{data[8:0]}};
            4: placed = {4{1'b0, {2{data[3:0]}}}};
            2: placed = {4{1'b0, {4{data[1:0]}}}};
            default: placed = {4{1'b0, {8{data[0]}}}};
        endcase
    endfunction
    function [35:0] found(input integer width, input [13:0] at, input [35:0] line);
        case (width)
            36: found = line;
            18: found = line >> (at[4] ? 18 : 0);
            9: found = (line >> (9 * at[4:3])) & 36'h1ff;
            4: found = (line >> (9 * at[4:3] + 4 * at[2])) & 36'hf;
            2: found = (line >> (9 * at[4:3] + 2 * at[2:1])) & 36'h3;
            default: found = (line >> (9 * at[4:3] + at[2:0])) & 36'h1;
        endcase
    endfunction

    wire on_a = CEA && {CSA2, CSA1, CSA0} == 3'd0;
    wire on_b = CEB && {CSB2, CSB1, CSB0} == 3'd0;
    wire write_a = on_a && WEA;
    wire write_b = on_b && WEB;
    wire [35:0] mask_a = write_a ? touched(DATA_WIDTH_A, ada) : 36'd0;
    wire [35:0] mask_b = write_b ? touched(DATA_WIDTH_B, adb) : 36'd0;
    wire [35:0] data_a = placed(DATA_WIDTH_A, ada, {dib, dia});
    wire [35:0] data_b = placed(DATA_WIDTH_B, adb, {18'd0, dib});
    wire same = ada[13:5] == adb[13:5];
    wire [35:0] line_a = lines[ada[13:5]] ^ (same ? mask_b : 36'd0);
    wire [35:0] line_b = lines[adb[13:5]] ^ (same ? mask_a : 36'd0);
    reg [35:0] out_a, out_b;
    initial out_a = 0;
    initial out_b = 0;

    always @(posedge CLKA) begin
        for (i = 0; i < 36; i = i + 1) if (mask_a[i]) lines[ada[13:5]][i] <= data_a[i];
        if (RSTA) out_a <= 0;
        else if (on_a && WEA && WRITEMODE_A == "WRITETHROUGH") out_a <= found(DATA_WIDTH_A, ada, data_a);
        else if (on_a && (!WEA || WRITEMODE_A == "READBEFOREWRITE")) out_a <= found(DATA_WIDTH_A, ada, line_a);
    end
    integer j;
    always @(posedge CLKB) begin
        for (j = 0; j < 36; j = j + 1) if (mask_b[j]) lines[adb[13:5]][j] <= data_b[j];
        if (RSTB) out_b <= 0;
        else if (on_b && WEB && WRITEMODE_B == "WRITETHROUGH") out_b <= found(DATA_WIDTH_B, adb, data_b);
        else if (on_b && (!WEB || WRITEMODE_B == "READBEFOREWRITE")) out_b <= found(DATA_WIDTH_B, adb, line_b);
    end

    // A word of 36 bits is read by port B and leaves by both; a narrower one next to a writer of 36 leaves by B.
    wire [17:0] doa = (DATA_WIDTH_B == 36) ? out_b[17:0] : out_a[17:0];
    wire [17:0] dob = (DATA_WIDTH_B == 36) ? out_b[35:18] : out_b[17:0];
    assign {
        DOA17, DOA16, DOA15, DOA14, DOA13, DOA12, DOA11, DOA10, DOA9, DOA8, DOA7, DOA6, DOA5, DOA4, DOA3, DOA2, DOA1, DOA0
    } = doa;
    assign {
        DOB17, DOB16, DOB15, DOB14, DOB13, DOB12, DOB11, DOB10, DOB9, DOB8, DOB7, DOB6, DOB5, DOB4, DOB3, DOB2, DOB1, DOB0
    } = dob;
endmodule
