// The numbers of a word, turned: lane j has the number of lane j + turn. By halves, a register's worth of logic each:
// choosing among all lanes at once takes a tool far longer, and more lookup tables.
module engine_turn #(
    parameter int LANES = 8,
    parameter int W = 16
) (
    input  logic [LANES*W-1:0]       in_data,
    input  logic [$clog2(LANES)-1:0] turn,
    output logic [LANES*W-1:0]       out_data
);
    localparam int LW = $clog2(LANES);
    logic [LW:0][LANES*W-1:0] partly;
    assign partly[0] = in_data;
    assign out_data = partly[LW];
    generate
        for (genvar i = 0; i < LW; i++) begin : step
            localparam int BY = W << i;
            assign partly[i+1] = turn[i] ? {partly[i][BY-1:0], partly[i][LANES*W-1:BY]} : partly[i];
        end
    endgenerate
endmodule
