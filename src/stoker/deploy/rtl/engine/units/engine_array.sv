// An array of LANES x LANES multipliers: each column adds up the products of a word with its own weights. A sum is
// there 1 + log2(LANES) cycles after its word.
module engine_array #(
    parameter int LANES = 8,
    parameter int X_W = 9,
    parameter int WEIGHT_W = 8,
    parameter int SUM_W = X_W + WEIGHT_W + $clog2(LANES)
) (
    input  logic                            clk,
    input  logic [LANES*X_W-1:0]            x,
    input  logic [LANES*LANES*WEIGHT_W-1:0] weights,   // of a column together, columns one after another
    output logic [LANES*SUM_W-1:0]          sums
);
    localparam int P_W = X_W + WEIGHT_W;
    generate
        for (genvar j = 0; j < LANES; j++) begin : column
            logic [LANES*P_W-1:0] products;
            logic signed [SUM_W-1:0] total;
            for (genvar i = 0; i < LANES; i++) begin : row
                logic signed [X_W-1:0] number;
                logic signed [WEIGHT_W-1:0] weight;
                assign number = x[i*X_W +: X_W];
                assign weight = weights[(j*LANES+i)*WEIGHT_W +: WEIGHT_W];
                always_ff @(posedge clk) products[i*P_W +: P_W] <= P_W'(number) * P_W'(weight);
            end
            adder_tree #(.COUNT(LANES), .IN_W(P_W), .OUT_W(SUM_W), .LEVELS($clog2(LANES))) tree (
                .clk, .in_data(products), .total
            );
            assign sums[j*SUM_W +: SUM_W] = total;
        end
    endgenerate
endmodule
