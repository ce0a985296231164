// A dense layer or a convolution whose weights are part of the circuit: windows, sums by additions alone, requantiser,
// output FIFO. All sums of a window are made at once; PE / BEATS results leave in a cycle.
module constant_unit #(
    parameter int PE = 1,             // sums of a window
    parameter int LANES = 1,
    parameter int TAPS = 1,
    parameter int IN_W = 8,
    parameter int ACC_W = 24,
    parameter int OUT_W = 8,
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
    parameter int ROWS = 3,
    parameter int BEATS = 1,          // words in which the results of a window leave
    parameter int PAD = 0,
    parameter int SHIFT = 8,
    parameter int ZERO = 0,
    parameter int LOW = -128,
    parameter int HIGH = 127,
    parameter int MULTIPLIERS = 1,
`ifdef THRESHOLDS
    parameter int THRESHOLDS = 0,
    parameter int THRESHOLD_W = 24,
    parameter int THRESHOLD_SIGNED = 1,
    parameter int SUM_W = 24,
`endif
    parameter int DEPTH = 16,         // words of the output FIFO
    parameter int LAYER = 0,          // which sums of `constant_array`
    parameter int LEVELS = 1,         // of their adders, a register each
    parameter FACTORS = ""
) (
    input  logic                        clk,
    input  logic                        rst,
    input  logic [LANES*IN_W-1:0]       in_data,
    input  logic                        in_valid,
    output logic                        in_ready,
    output logic [PE/BEATS*OUT_W-1:0]   out_data,
    output logic                        out_valid,
    input  logic                        out_ready
);
    localparam int OUT_LANES = PE / BEATS;

    logic places_left, room, take;
    logic [TAPS*LANES*IN_W-1:0] taps;
    logic taps_valid;
    logic [LEVELS:0] valid;               // before and behind each level
    logic [PE*ACC_W-1:0] sums;
    logic [OUT_LANES*ACC_W-1:0] acc;
    logic acc_valid;
    logic [OUT_LANES*OUT_W-1:0] result;
    logic result_valid;

    credits #(.DEPTH(DEPTH), .TAKE(BEATS)) places (
        .clk, .rst, .take, .give(out_valid && out_ready), .room(places_left)
    );

    // A window is begun when the results of the one before have left.
    generate
        if (BEATS == 1) begin : always_free
            assign room = places_left;
        end else begin : paced
            localparam int CW = $clog2(BEATS);
            logic [CW-1:0] left;
            assign room = places_left && left == '0;
            always_ff @(posedge clk) begin
                if (rst) left <= '0;
                else if (take) left <= CW'(BEATS - 1);
                else if (left != '0) left <= left - 1'b1;
            end
        end
    endgenerate

    logic ahead, first, last, unused;   // a window is one beat
    window #(
        .LANES(LANES), .W(IN_W), .WORDS(1), .HEIGHT(HEIGHT), .WIDTH(WIDTH), .KERNEL_Y(KERNEL_Y), .KERNEL_X(KERNEL_X),
        .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .TOP(TOP),
        .LEFT(LEFT), .OUT_Y(OUT_Y), .OUT_X(OUT_X), .PAD(PAD), .TAPS(TAPS), .ROWS(ROWS)
    ) lines (
        .clk, .rst, .in_data, .in_valid, .in_ready, .room, .take, .ahead, .out_data(taps), .out_valid(taps_valid),
        .out_first(first), .out_last(last)
    );
    assign unused = &{1'b0, ahead, first, last};

    constant_array #(.LAYER(LAYER), .IN_W(TAPS * LANES * IN_W), .OUT_W(PE * ACC_W)) array (
        .clk, .in_data(taps), .out_data(sums)
    );
    assign valid[0] = taps_valid;
    generate
        if (LEVELS > 0) begin : late
            always_ff @(posedge clk) valid[LEVELS:1] <= rst ? '0 : valid[LEVELS-1:0];
        end
    endgenerate

    serialise #(.W(OUT_LANES * ACC_W), .BEATS(BEATS)) beats (
        .clk, .rst, .in_data(sums), .in_valid(valid[LEVELS]), .out_data(acc), .out_valid(acc_valid)
    );

`ifdef THRESHOLDS
    requantiser #(
        .THRESHOLDS(THRESHOLDS), .THRESHOLD_W(THRESHOLD_W), .THRESHOLD_SIGNED(THRESHOLD_SIGNED),
        .SUM_W(SUM_W),
`else
    requantise #(
`endif
        .LANES(OUT_LANES), .ACC_W(ACC_W), .OUT_W(OUT_W), .SHIFT(SHIFT), .ZERO(ZERO), .LOW(LOW), .HIGH(HIGH),
        .MULTIPLIERS(MULTIPLIERS), .FILE(FACTORS)
    ) law (
        .clk, .rst, .in_data(acc), .in_valid(acc_valid), .out_data(result), .out_valid(result_valid)
    );

    output_fifo #(.W(OUT_LANES * OUT_W), .DEPTH(DEPTH)) results (
        .clk, .rst, .in_data(result), .in_valid(result_valid), .out_data, .out_valid, .out_ready
    );
endmodule
