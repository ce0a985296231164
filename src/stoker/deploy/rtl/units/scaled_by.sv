// by * (x - zero), three registers deep: as `scaled`, with numbers that an update may change. `zero` is taken with `x`,
// `by` a cycle later.
module scaled_by #(
    parameter int IN_W = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_W = 24
) (
    input  logic                    clk,
    input  logic [IN_W-1:0]         x,
    input  logic signed [IN_W:0]    zero,
    input  logic signed [16:0]      by,
    output logic signed [OUT_W-1:0] y
);
    logic signed [IN_W+1:0] centred;
    logic signed [OUT_W-1:0] product;
    always_ff @(posedge clk) begin
        centred <= ((IN_SIGNED != 0) ? (IN_W+2)'($signed(x)) : (IN_W+2)'($signed({1'b0, x}))) - (IN_W+2)'(zero);
        product <= OUT_W'(centred) * OUT_W'(by);
        y <= product;
    end
    logic unused;  // of a factor, in a sum that is narrower
    assign unused = &{1'b0, by};
endmodule
