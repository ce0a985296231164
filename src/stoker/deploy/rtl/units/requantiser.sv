// The law by comparisons with thresholds, or by multipliers and shifts: in designs that have layers of either kind.
module requantiser #(
    parameter int LANES = 1,
    parameter int ACC_W = 24,
    parameter int OUT_W = 8,
    parameter int SHIFT = 8,
    parameter int ZERO = 0,
    parameter int LOW = -128,
    parameter int HIGH = 127,
    parameter int MULTIPLIERS = 0,
    parameter int THRESHOLDS = 0,    // words of the memory of a lane's first step; 0 for multipliers or shifts
    parameter int THRESHOLD_W = 24,
    parameter int THRESHOLD_SIGNED = 1,
    parameter int SUM_W = 24,
    parameter FILE = ""
) (
    input  logic                   clk,
    input  logic                   rst,
    input  logic [LANES*ACC_W-1:0] in_data,
    input  logic                   in_valid,
    output logic [LANES*OUT_W-1:0] out_data,
    output logic                   out_valid
);
    generate
        if (THRESHOLDS > 0) begin : compared
            thresholds #(
                .LANES(LANES), .ACC_W(ACC_W), .OUT_W(OUT_W), .SUM_W(SUM_W), .W(THRESHOLD_W),
                .SIGNED(THRESHOLD_SIGNED), .LOW(LOW), .HIGH(HIGH), .WORDS(THRESHOLDS), .FILE(FILE)
            ) law (.clk, .rst, .in_data, .in_valid, .out_data, .out_valid);
        end else begin : scaled
            requantise #(
                .LANES(LANES), .ACC_W(ACC_W), .OUT_W(OUT_W), .SHIFT(SHIFT), .ZERO(ZERO), .LOW(LOW), .HIGH(HIGH),
                .MULTIPLIERS(MULTIPLIERS), .FILE(FILE)
            ) law (.clk, .rst, .in_data, .in_valid, .out_data, .out_valid);
        end
    endgenerate
endmodule
