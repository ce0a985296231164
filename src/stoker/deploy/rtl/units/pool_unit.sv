// The largest of each window, or the requantised sum of its differences from the zero point, LANES channels at a time.
module pool_unit #(
    parameter int LANES = 1,
    parameter int LARGEST = 1,        // 1: the largest, as it is; 0: the sum, requantised
    parameter int IN_W = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_W = 8,
    parameter int ACC_W = 16,         // as wide as the input for the largest
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
    parameter int ROWS = 3,
`ifdef UPDATABLE
    parameter PADS = "",
    parameter LAW = "",
`else
    parameter int PAD = 0,
    parameter int IN_ZERO = 0,
    parameter int SHIFT = 0,
    parameter int ZERO = 0,
    parameter int LOW = -128,
    parameter int HIGH = 127,
`endif
    parameter int MULTIPLIERS = 0,
`ifdef THRESHOLDS
    parameter int THRESHOLDS = 0,
    parameter int THRESHOLD_W = 24,
    parameter int THRESHOLD_SIGNED = 1,
    parameter int SUM_W = 24,
`endif
    parameter int DEPTH = 16,
    parameter FACTORS = ""
) (
    input  logic                   clk,
    input  logic                   rst,
`ifdef UPDATABLE
    input  logic [33:0]            update,
    output logic [33:0]            update_on,
    input  logic [16:0]            change,
    output logic                   bank,         // of the sample to come
`endif
    input  logic [LANES*IN_W-1:0]  in_data,
    input  logic                   in_valid,
    output logic                   in_ready,
    output logic [LANES*OUT_W-1:0] out_data,
    output logic                   out_valid,
    input  logic                   out_ready
);
    localparam int X_W = IN_W + ((IN_SIGNED != 0) ? 0 : 1);

    logic room, take, ahead;
    logic [LANES*IN_W-1:0] tap;
    logic tap_valid, tap_first, tap_last;
    logic [LANES*ACC_W-1:0] acc;
    logic acc_valid;
    logic [LANES*OUT_W-1:0] result;
    logic result_valid;

`ifdef UPDATABLE
    // What is outside of the image; for sums it is the zero point, from which all else is taken.
    logic [33:0] update_law;
    logic [2*IN_W-1:0] pads;
    logic shadow, ahead_bank, tap_bank;
    assign shadow = !change[16];
    bank_word #(.W(IN_W), .FILE(PADS)) padding (.clk, .rst, .update, .update_on(update_law), .shadow, .words(pads));
    logic unused_bank;
    assign unused_bank = ahead_bank;
`endif

    credits #(.DEPTH(DEPTH), .TAKE(1)) places (.clk, .rst, .take, .give(out_valid && out_ready), .room);

    // Channels are groups of their own: the taps of one word follow each other.
    window #(
        .LANES(LANES), .W(IN_W), .WORDS(WORDS), .HEIGHT(HEIGHT), .WIDTH(WIDTH), .KERNEL_Y(KERNEL_Y),
        .KERNEL_X(KERNEL_X), .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .DILATION_Y(DILATION_Y),
        .DILATION_X(DILATION_X), .TOP(TOP), .LEFT(LEFT), .OUT_Y(OUT_Y), .OUT_X(OUT_X), .GROUPS(WORDS), .FOLDS(1),
`ifdef UPDATABLE
        .IMAGES(1),
`else
        .PAD(PAD),
`endif
        .TAPS(1), .ROWS(ROWS)
    ) lines (
`ifdef UPDATABLE
        .pads, .change, .bank, .ahead_bank, .out_bank(tap_bank),
`endif
        .clk, .rst, .in_data, .in_valid, .in_ready, .room, .take, .ahead, .out_data(tap), .out_valid(tap_valid),
        .out_first(tap_first), .out_last(tap_last)
    );
    logic unused;
    assign unused = ahead;

    always_ff @(posedge clk) acc_valid <= !rst && tap_valid && tap_last;

    generate
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [X_W-1:0] x;
            logic signed [ACC_W-1:0] total;
            if (IN_SIGNED != 0) begin : with_sign
                assign x = tap[i*IN_W +: IN_W];
            end else begin : without
                assign x = {1'b0, tap[i*IN_W +: IN_W]};
            end
            if (LARGEST != 0) begin : largest
                always_ff @(posedge clk) begin
                    if (tap_valid && (tap_first || ACC_W'(x) > total)) total <= ACC_W'(x);
                end
            end else begin : summed
                logic signed [ACC_W-1:0] term;
`ifdef UPDATABLE
                logic [IN_W-1:0] pad;
                logic signed [X_W-1:0] in_zero;
                assign pad = tap_bank ? pads[2*IN_W-1:IN_W] : pads[IN_W-1:0];
                if (IN_SIGNED != 0) begin : zero_with_sign
                    assign in_zero = pad;
                end else begin : zero_without
                    assign in_zero = {1'b0, pad};
                end
                assign term = ACC_W'(x) - ACC_W'(in_zero);
`else
                assign term = ACC_W'(x) - ACC_W'(IN_ZERO);
`endif
                always_ff @(posedge clk) if (tap_valid) total <= (tap_first ? '0 : total) + term;
            end
            assign acc[i*ACC_W +: ACC_W] = total;
        end

        if (LARGEST != 0) begin : as_it_is
            for (genvar i = 0; i < LANES; i++) begin : kept
                assign result[i*OUT_W +: OUT_W] = acc[i*ACC_W +: OUT_W];
            end
            assign result_valid = acc_valid;
            logic unused_sign;
            assign unused_sign = &{1'b0, acc};
`ifdef UPDATABLE
            assign update_on = update_law;
            logic unused_tap;
            assign unused_tap = tap_bank;
`endif
        end else begin : by_law
`ifdef THRESHOLDS
            requantiser #(
                .THRESHOLDS(THRESHOLDS), .THRESHOLD_W(THRESHOLD_W), .THRESHOLD_SIGNED(THRESHOLD_SIGNED),
                .SUM_W(SUM_W),
`else
            requantise #(
`endif
                .LANES(LANES), .ACC_W(ACC_W), .OUT_W(OUT_W),
`ifdef UPDATABLE
                .LAW(LAW),
`else
                .SHIFT(SHIFT), .ZERO(ZERO), .LOW(LOW), .HIGH(HIGH),
`endif
                .MULTIPLIERS(MULTIPLIERS), .FILE(FACTORS)
            ) law (
`ifdef UPDATABLE
                .update(update_law), .update_on, .shadow, .next_bank(tap_bank),
`endif
                .clk, .rst, .in_data(acc), .in_valid(acc_valid), .out_data(result), .out_valid(result_valid)
            );
        end
    endgenerate

    output_fifo #(.W(LANES * OUT_W), .DEPTH(DEPTH)) results (
        .clk, .rst, .in_data(result), .in_valid(result_valid), .out_data, .out_valid, .out_ready
    );
endmodule
