// A_BY * (a - A_ZERO) + B_BY * (b - B_ZERO), requantised. With ONE it is the first term alone: another scale of `a`.
module add_unit #(
    parameter int LANES = 1,
    parameter int ONE = 0,
    parameter int A_W = 8,
    parameter int A_SIGNED = 1,
    parameter int A_BY = 1,
    parameter int A_ZERO = 0,
    parameter int B_W = 8,
    parameter int B_SIGNED = 1,
    parameter int B_BY = 1,
    parameter int B_ZERO = 0,
    parameter int ACC_W = 24,
    parameter int OUT_W = 8,
    parameter int SHIFT = 8,
    parameter int ZERO = 0,
    parameter int LOW = -128,
    parameter int HIGH = 127,
    parameter int MULTIPLIERS = 0,
    parameter int DEPTH = 16,
    parameter FACTORS = ""
) (
    input  logic                   clk,
    input  logic                   rst,
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

    credits #(.DEPTH(DEPTH), .TAKE(1)) places (.clk, .rst, .take, .give(out_valid && out_ready), .room);

    always_ff @(posedge clk) begin
        valid <= rst ? '0 : {valid[1:0], take};
        acc_valid <= !rst && valid[2];
    end

    generate
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [ACC_W-1:0] a_part, b_part;
            scaled #(.IN_W(A_W), .IN_SIGNED(A_SIGNED), .OUT_W(ACC_W), .BY(A_BY), .ZERO(A_ZERO)) a_term (
                .clk, .x(a_data[i*A_W +: A_W]), .y(a_part)
            );
            if (ONE != 0) begin : alone
                assign b_part = '0;
            end else begin : both
                scaled #(.IN_W(B_W), .IN_SIGNED(B_SIGNED), .OUT_W(ACC_W), .BY(B_BY), .ZERO(B_ZERO)) b_term (
                    .clk, .x(b_data[i*B_W +: B_W]), .y(b_part)
                );
            end
            always_ff @(posedge clk) acc[i*ACC_W +: ACC_W] <= a_part + b_part;
        end
        if (ONE != 0) begin : without_b
            logic unused;
            assign unused = &{1'b0, b_data, b_valid};
        end
    endgenerate

    requantise #(
        .LANES(LANES), .ACC_W(ACC_W), .OUT_W(OUT_W), .SHIFT(SHIFT), .ZERO(ZERO), .LOW(LOW), .HIGH(HIGH),
        .MULTIPLIERS(MULTIPLIERS), .FILE(FACTORS)
    ) law (
        .clk, .rst, .in_data(acc), .in_valid(acc_valid), .out_data(result), .out_valid(result_valid)
    );

    output_fifo #(.W(LANES * OUT_W), .DEPTH(DEPTH)) results (
        .clk, .rst, .in_data(result), .in_valid(result_valid), .out_data, .out_valid, .out_ready
    );
endmodule
