// The sum of COUNT numbers, a register after each of LEVELS levels of adders.
module adder_tree #(
    parameter int COUNT = 4,
    parameter int IN_W = 16,
    parameter int OUT_W = 18,
    parameter int LEVELS = 2
) (
    input  logic                    clk,
    input  logic [COUNT*IN_W-1:0]   in_data,
    output logic signed [OUT_W-1:0] total
);
    localparam int HALF = 1 << ((LEVELS > 0) ? LEVELS - 1 : 0);
    generate
        if (LEVELS == 0) begin : leaf
            assign total = OUT_W'($signed(in_data[IN_W-1:0]));
            logic unused;
            assign unused = clk;
        end else if (COUNT <= HALF) begin : alone
            logic signed [OUT_W-1:0] one;
            adder_tree #(.COUNT(COUNT), .IN_W(IN_W), .OUT_W(OUT_W), .LEVELS(LEVELS - 1)) below (
                .clk, .in_data, .total(one)
            );
            always_ff @(posedge clk) total <= one;
        end else begin : both
            logic signed [OUT_W-1:0] low, high;
            adder_tree #(.COUNT(HALF), .IN_W(IN_W), .OUT_W(OUT_W), .LEVELS(LEVELS - 1)) below (
                .clk, .in_data(in_data[HALF*IN_W-1:0]), .total(low)
            );
            adder_tree #(.COUNT(COUNT - HALF), .IN_W(IN_W), .OUT_W(OUT_W), .LEVELS(LEVELS - 1)) above (
                .clk, .in_data(in_data[COUNT*IN_W-1:HALF*IN_W]), .total(high)
            );
            always_ff @(posedge clk) total <= low + high;
        end
    endgenerate
endmodule
