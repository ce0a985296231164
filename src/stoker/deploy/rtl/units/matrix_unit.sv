// A dense layer or a convolution: windows, PE x (TAPS x LANES) multipliers, requantiser, output FIFO.
// A dense layer is the convolution of an image of one pixel.
module matrix_unit #(
    parameter int PE = 1,
    parameter int LANES = 1,
    parameter int TAPS = 1,
    parameter int OWN = 0,
    parameter int IN_W = 8,
    parameter int IN_SIGNED = 1,
    parameter int WEIGHT_W = 8,
    parameter int ACC_W = 24,
    parameter int OUT_W = 8,
    parameter int WORDS = 1,
    parameter int HEIGHT = 1,
    parameter int WIDTH = 1,
    parameter int KERNEL_Y = 1,
    parameter int KERNEL_X = 1,
    parameter int STRIDE_Y = 1,
    parameter int STRIDE_X = 1,
    parameter int DILATION_Y = 1,
    parameter int DILATION_X = 1,
    parameter int TOP = 0,
    parameter int LEFT = 0,
    parameter int OUT_Y = 1,
    parameter int OUT_X = 1,
    parameter int GROUPS = 1,
    parameter int FOLDS = 1,
    parameter int ROWS = 3,
    parameter int BEATS = 1,          // words in which the results of PE channels leave
`ifdef UPDATABLE
    parameter int IMAGES = 1,         // of a sample
    parameter PADS = "",
    parameter LAW = "",
`else
    parameter int PAD = 0,
    parameter int SHIFT = 8,
    parameter int ZERO = 0,
    parameter int LOW = -128,
    parameter int HIGH = 127,
`endif
    parameter int MULTIPLIERS = 1,
`ifdef THRESHOLDS
    parameter int THRESHOLDS = 0,
    parameter int THRESHOLD_W = 24,
    parameter int THRESHOLD_SIGNED = 1,
    parameter int SUM_W = 24,
`endif
    parameter int DEPTH = 16,         // words of the output FIFO
    parameter WEIGHTS = "",
    parameter BIASES = "",
    parameter FACTORS = ""
) (
    input  logic                        clk,
    input  logic                        rst,
`ifdef UPDATABLE
    input  logic [33:0]                 update,
    output logic [33:0]                 update_on,
    input  logic [16:0]                 change,
    output logic                        bank,         // of the sample to come
`endif
    input  logic [LANES*IN_W-1:0]       in_data,
    input  logic                        in_valid,
    output logic                        in_ready,
    output logic [PE/BEATS*OUT_W-1:0]   out_data,
    output logic                        out_valid,
    input  logic                        out_ready
);
    localparam int OUT_LANES = PE / BEATS;
    localparam int SUM_BEATS = KERNEL_Y * KERNEL_X / TAPS * (WORDS / GROUPS);

    logic room, take, ahead;
    logic [TAPS*LANES*IN_W-1:0] taps;
    logic taps_valid, taps_first, taps_last;
    logic [PE*ACC_W-1:0] sums;
    logic sums_valid;
    logic [OUT_LANES*ACC_W-1:0] acc;
    logic acc_valid;
    logic [OUT_LANES*OUT_W-1:0] result;
    logic result_valid;

`ifdef UPDATABLE
    logic [33:0] update_array, update_law;
    logic [2*IN_W-1:0] pads;
    logic shadow, ahead_bank, taps_bank, sums_bank, next_bank;
    assign shadow = !change[16];
    bank_word #(.W(IN_W), .FILE(PADS)) padding (.clk, .rst, .update, .update_on(update_array), .shadow, .words(pads));
`endif

    credits #(.DEPTH(DEPTH), .TAKE(BEATS)) places (.clk, .rst, .take, .give(out_valid && out_ready), .room);

    window #(
        .LANES(LANES), .W(IN_W), .WORDS(WORDS), .HEIGHT(HEIGHT), .WIDTH(WIDTH), .KERNEL_Y(KERNEL_Y),
        .KERNEL_X(KERNEL_X), .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .DILATION_Y(DILATION_Y),
        .DILATION_X(DILATION_X), .TOP(TOP), .LEFT(LEFT), .OUT_Y(OUT_Y), .OUT_X(OUT_X), .GROUPS(GROUPS), .FOLDS(FOLDS),
`ifdef UPDATABLE
        .IMAGES(IMAGES),
`else
        .PAD(PAD),
`endif
        .TAPS(TAPS), .ROWS(ROWS)
    ) lines (
`ifdef UPDATABLE
        .pads, .change, .bank, .ahead_bank, .out_bank(taps_bank),
`endif
        .clk, .rst, .in_data, .in_valid, .in_ready, .room, .take, .ahead, .out_data(taps), .out_valid(taps_valid),
        .out_first(taps_first), .out_last(taps_last)
    );

    mac_array #(
        .PE(PE), .TAPS(TAPS), .LANES(LANES), .OWN(OWN), .IN_W(IN_W), .IN_SIGNED(IN_SIGNED), .WEIGHT_W(WEIGHT_W),
        .ACC_W(ACC_W), .WORDS(SUM_BEATS * FOLDS * GROUPS), .SUMS(FOLDS * GROUPS), .WEIGHTS(WEIGHTS), .BIASES(BIASES)
    ) array (
`ifdef UPDATABLE
        .update(update_array), .update_on(update_law), .shadow, .ahead_bank, .in_bank(taps_bank), .out_bank(sums_bank),
`endif
        .clk, .rst, .ahead, .in_data(taps), .in_valid(taps_valid), .in_first(taps_first), .in_last(taps_last),
        .out_data(sums), .out_valid(sums_valid)
    );

    serialise #(.W(OUT_LANES * ACC_W), .BEATS(BEATS)) beats (
`ifdef UPDATABLE
        .in_bank(sums_bank), .next_bank,
`endif
        .clk, .rst, .in_data(sums), .in_valid(sums_valid), .out_data(acc), .out_valid(acc_valid)
    );

`ifdef THRESHOLDS
    requantiser #(
        .THRESHOLDS(THRESHOLDS), .THRESHOLD_W(THRESHOLD_W), .THRESHOLD_SIGNED(THRESHOLD_SIGNED),
        .SUM_W(SUM_W),
`else
    requantise #(
`endif
        .LANES(OUT_LANES), .ACC_W(ACC_W), .OUT_W(OUT_W),
`ifdef UPDATABLE
        .LAW(LAW),
`else
        .SHIFT(SHIFT), .ZERO(ZERO), .LOW(LOW), .HIGH(HIGH),
`endif
        .MULTIPLIERS(MULTIPLIERS), .FILE(FACTORS)
    ) law (
`ifdef UPDATABLE
        .update(update_law), .update_on, .shadow, .next_bank,
`endif
        .clk, .rst, .in_data(acc), .in_valid(acc_valid), .out_data(result), .out_valid(result_valid)
    );

    output_fifo #(.W(OUT_LANES * OUT_W), .DEPTH(DEPTH)) results (
        .clk, .rst, .in_data(result), .in_valid(result_valid), .out_data, .out_valid, .out_ready
    );
endmodule
