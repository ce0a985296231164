// A_BY * (a - A_ZERO) + B_BY * (b - B_ZERO), requantised. With ONE it is the first term alone: another scale of `a`.
module add_unit #(
    parameter int LANES = 1,
    parameter int ONE = 0,
    parameter int A_W = 8,
    parameter int A_SIGNED = 1,
    parameter int B_W = 8,
    parameter int B_SIGNED = 1,
    parameter int ACC_W = 24,
    parameter int OUT_W = 8,
`ifdef UPDATABLE
    parameter int SAMPLE = 1,         // words
    parameter TERMS = "",
    parameter LAW = "",
`else
    parameter int A_BY = 1,
    parameter int A_ZERO = 0,
    parameter int B_BY = 1,
    parameter int B_ZERO = 0,
    parameter int SHIFT = 8,
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
    input  logic [LANES*A_W-1:0]   a_data,
    input  logic                   a_valid,
    output logic                   a_ready,
    input  logic [LANES*B_W-1:0]   b_data,
    input  logic                   b_valid,
    output logic                   b_ready,
    output logic [LANES*OUT_W-1:0] out_data,
    output logic                   out_valid,
    input  logic                   out_ready
);
    logic room, take, acc_valid, result_valid;
    logic [2:0] valid;
    logic [LANES*ACC_W-1:0] acc;
    logic [LANES*OUT_W-1:0] result;

    assign take = room && a_valid && (b_valid || ONE != 0);
    assign a_ready = take;
    assign b_ready = take;

`ifdef UPDATABLE
    localparam int TERMS_W = A_W + B_W + 2 + 2 * 17;
    logic [33:0] update_law;
    logic [2*TERMS_W-1:0] terms;
    logic shadow;
    logic [2:0] banks;
    logic signed [A_W:0] a_zero;
    logic signed [B_W:0] b_zero;
    logic signed [16:0] a_by, b_by;
    assign shadow = !change[16];
    bank_switch #(.COUNT(SAMPLE)) versions (.clk, .rst, .step(take), .change, .bank);
    bank_word #(.W(TERMS_W), .FILE(TERMS)) constants (
        .clk, .rst, .update, .update_on(update_law), .shadow, .words(terms)
    );
    always_ff @(posedge clk) banks <= {banks[1:0], bank};
    assign a_zero = terms[(bank ? TERMS_W : 0) +: A_W + 1];
    assign b_zero = terms[(bank ? TERMS_W : 0) + A_W + 1 +: B_W + 1];
    assign a_by = terms[(banks[0] ? TERMS_W : 0) + A_W + B_W + 2 +: 17];
    assign b_by = terms[(banks[0] ? TERMS_W : 0) + A_W + B_W + 19 +: 17];
`endif

    credits #(.DEPTH(DEPTH), .TAKE(1)) places (.clk, .rst, .take, .give(out_valid && out_ready), .room);

    always_ff @(posedge clk) begin
        valid <= rst ? '0 : {valid[1:0], take};
        acc_valid <= !rst && valid[2];
    end

    generate
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [ACC_W-1:0] a_part, b_part;
`ifdef UPDATABLE
            scaled_by #(.IN_W(A_W), .IN_SIGNED(A_SIGNED), .OUT_W(ACC_W)) a_term (
                .clk, .x(a_data[i*A_W +: A_W]), .zero(a_zero), .by(a_by), .y(a_part)
            );
`else
            scaled #(.IN_W(A_W), .IN_SIGNED(A_SIGNED), .OUT_W(ACC_W), .BY(A_BY), .ZERO(A_ZERO)) a_term (
                .clk, .x(a_data[i*A_W +: A_W]), .y(a_part)
            );
`endif
            if (ONE != 0) begin : alone
                assign b_part = '0;
            end else begin : both
`ifdef UPDATABLE
                scaled_by #(.IN_W(B_W), .IN_SIGNED(B_SIGNED), .OUT_W(ACC_W)) b_term (
                    .clk, .x(b_data[i*B_W +: B_W]), .zero(b_zero), .by(b_by), .y(b_part)
                );
`else
                scaled #(.IN_W(B_W), .IN_SIGNED(B_SIGNED), .OUT_W(ACC_W), .BY(B_BY), .ZERO(B_ZERO)) b_term (
                    .clk, .x(b_data[i*B_W +: B_W]), .y(b_part)
                );
`endif
            end
            always_ff @(posedge clk) acc[i*ACC_W +: ACC_W] <= a_part + b_part;
        end
        if (ONE != 0) begin : without_b
            logic unused;
            assign unused = &{1'b0, b_data, b_valid};
`ifdef UPDATABLE
            logic unused_terms;
            assign unused_terms = &{1'b0, b_zero, b_by};
`endif
        end
    endgenerate

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
        .update(update_law), .update_on, .shadow, .next_bank(banks[2]),
`endif
        .clk, .rst, .in_data(acc), .in_valid(acc_valid), .out_data(result), .out_valid(result_valid)
    );

    output_fifo #(.W(LANES * OUT_W), .DEPTH(DEPTH)) results (
        .clk, .rst, .in_data(result), .in_valid(result_valid), .out_data, .out_valid, .out_ready
    );
endmodule
